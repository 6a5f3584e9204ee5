"""A configuration as it was read and merged: frozen, complete, without defaults left to fill in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.core.framework import Plugin

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"
BACKOFF_FIRST_SECONDS = 1
BACKOFF_SECONDS_MAX = 10
# Extension points in the order in which a pod passes them, by their names in a configuration.
POINTS = (
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, and what would be right. `line` counts from 1."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.path}: {self.message}" if self.path else f"line {self.line}: {self.message}"


class ConfigurationErrors(ValueError):
    """All that is wrong with a file; never empty."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        assert problems
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))
        self.source = source
        self.problems = problems


@dataclass(frozen=True, slots=True)
class ProfileConfiguration:
    """`points`: the plugins of each of POINTS by name, in order; `weights`: of those at score; `plugins`: the plugins
    themselves by name, made with their arguments; `without_effect`: names that are accepted and do nothing, and why.
    """

    scheduler_name: str
    points: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]
    plugins: Mapping[str, Plugin]
    without_effect: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchedulerConfiguration:
    """`notes`: fields that are accepted and have no effect here, each with the reason."""

    profiles: tuple[ProfileConfiguration, ...]
    backoff_first_seconds: float = BACKOFF_FIRST_SECONDS
    backoff_seconds_max: float = BACKOFF_SECONDS_MAX
    notes: tuple[str, ...] = ()

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        return tuple(profile.scheduler_name for profile in self.profiles)
