"""Settings of kubelet_sim. Lease times are Kubernetes' defaults (KubeletConfiguration.nodeLeaseDurationSeconds)."""

from dataclasses import dataclass

from services.runtime.settings import CommonSettings, SettingsError, check_address, option


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings(CommonSettings):
    """Which machines to play, and how fast."""

    apiserver: tuple[str, ...] = option("API servers, host:port; whichever answers is used")
    fleet: tuple[str, ...] = option("machines to register, shape=count; besides, every simulated node is adopted", ())
    seed: int = option("seed of all durations; the same seed and pod names give the same ones", 0)
    speed: float = option("simulated seconds that pass in a real one, for starts, runs and stops of pods", 1.0)
    lease_duration_seconds: int = option("seconds after which a node that does not renew its lease counts as lost", 40)
    lease_renew_seconds: float = option("seconds between two renewals of a node's lease", 10.0)

    def __post_init__(self) -> None:
        # Called by name: a dataclass with slots is made anew, and `super()` would mean the class before that.
        CommonSettings.__post_init__(self)
        if not self.apiserver:
            raise SettingsError("--apiserver must name at least one server")
        for address in self.apiserver:
            check_address("--apiserver", address)
        if not 0 < self.speed < float("inf"):
            raise SettingsError(f"--speed {self.speed} is not a positive number")
        if self.lease_renew_seconds <= 0 or self.lease_renew_seconds * 2 > self.lease_duration_seconds:
            raise SettingsError(
                f"--lease-renew-seconds {self.lease_renew_seconds} must be positive and at most half of "
                f"--lease-duration-seconds {self.lease_duration_seconds}"
            )
