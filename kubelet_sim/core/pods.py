"""A pod as its kubelet knows it: the projection it works from, and the stages that its containers pass.

    ADMITTING -> CREATING -> INITIALIZING (one init container after another) -> RUNNING -> FINISHED
        |            \\______________\\_____________________________\\-> STOPPING -> REMOVING
        \\-> FINISHED (refused: phase Failed)

The phase that the API shows is a function of the stage: Pending up to INITIALIZING, Running, then Succeeded or Failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from services.model.pod import PodView


class Stage(Enum):
    """Where a pod stands on its machine."""

    # Seen, not yet admitted.
    ADMITTING = "admitting"
    # Admitted: images are pulled, sandbox and first containers are made.
    CREATING = "creating"
    # Its init containers run, one after another.
    INITIALIZING = "initializing"
    RUNNING = "running"
    # Succeeded, Failed or refused; nothing runs any more.
    FINISHED = "finished"
    # Its containers were told to stop and still hold what they held.
    STOPPING = "stopping"
    # Stopped; its object waits to be removed.
    REMOVING = "removing"

    @property
    def holds(self) -> bool:
        """Whether containers exist, so that CPUs, memory and devices are in use."""
        return self in (Stage.CREATING, Stage.INITIALIZING, Stage.RUNNING, Stage.STOPPING)


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """`sidecar`: an init container with restartPolicy Always, which starts and stays."""

    name: str
    image: str
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class PodContainers:
    """The memoised part of a KubeletPod: equal for all pods of one template."""

    init: tuple[ContainerFacts, ...]
    main: tuple[ContainerFacts, ...]
    qos_class: str

    @property
    def plain_init(self) -> tuple[ContainerFacts, ...]:
        """The init containers that must finish before the pod runs."""
        return tuple(container for container in self.init if not container.sidecar)


@dataclass(frozen=True, slots=True)
class KubeletPod:
    """What the kubelet reads of a bound pod. Times in Unix nanoseconds, 0 where the status has none.

    `acknowledged_ns` is status.startTime, `running_ns` the start of the first container, `scheduled_ns` the transition
    of the condition PodScheduled. `grace_seconds` is the grace of the deletion under way. `foreign_conditions` are
    those of the status's conditions that others wrote, in JSON form: a kubelet says them again, since it writes the list whole.
    """

    view: PodView
    containers: PodContainers
    scheduled_ns: int = 0
    acknowledged_ns: int = 0
    running_ns: int = 0
    pod_ip: str = ""
    grace_seconds: int = 0
    foreign_conditions: tuple[Mapping[str, Any], ...] = ()

    @property
    def key(self) -> str:
        """namespace/name."""
        return self.view.key

    @property
    def node_name(self) -> str:
        return self.view.spec.node_name
