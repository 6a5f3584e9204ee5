"""How long each step of a simulated pod takes: spread evenly over a range, from the seed, the pod's name and the step alone.

Nothing else enters, so the same pod takes the same time in every run with that seed, whatever else happens, and a
kubelet that starts again arrives at the duration that its predecessor had in mind. `speed` divides all of them: at 10,
ten simulated seconds pass in one.
"""

import hashlib
from dataclasses import dataclass

# (shortest, longest) in seconds. Containers of images that are on the machine start within a second on real kubelets.
CREATE_SECONDS = (0.2, 0.8)
INIT_SECONDS = (0.3, 1.5)
STOP_SECONDS = (0.1, 0.5)
# Of a pod that is to end (restartPolicy Never or OnFailure) and does not say when.
RUN_SECONDS = (20.0, 40.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of each step for this seed and speed."""

    seed: int = 0
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"speed {self.speed} is not a positive number")

    def create(self, pod_key: str) -> float:
        return self._spread(CREATE_SECONDS, pod_key, "create")

    def init(self, pod_key: str, index: int) -> float:
        return self._spread(INIT_SECONDS, pod_key, f"init/{index}")

    def stop(self, pod_key: str, grace_seconds: float) -> float:
        """Never longer than the grace: what has not stopped by then is killed."""
        return min(self._spread(STOP_SECONDS, pod_key, "stop"), max(0.0, grace_seconds) / self.speed)

    def run(self, pod_key: str, run_seconds: float | None, restart_policy: str) -> float | None:
        """None: it runs until it is deleted. A pod that says `run_seconds` ends after them, whatever its restartPolicy."""
        if run_seconds is not None:
            return run_seconds / self.speed
        if restart_policy == "Always":
            return None
        return self._spread(RUN_SECONDS, pod_key, "run")

    def _spread(self, bounds: tuple[float, float], pod_key: str, step: str) -> float:
        digest = hashlib.blake2b(f"{self.seed}/{pod_key}/{step}".encode(), digest_size=8).digest()
        fraction = int.from_bytes(digest, "big") / 2**64
        return (bounds[0] + (bounds[1] - bounds[0]) * fraction) / self.speed
