"""The scheduler's settings."""

from dataclasses import dataclass

from services.client.election import ElectionSettings
from services.model.names import LEASE_SCHEDULER, NAMESPACE_SYSTEM, SCHEDULER_NAME_DEFAULT
from services.runtime.settings import CommonSettings, SettingsError, check_address, option

PLUGIN_SECONDS_MAX = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings(CommonSettings):
    """See `python -m scheduler --help`."""

    apiserver: tuple[str, ...] = option("host:port of each API server", ("127.0.0.1:6443",))
    config: str = option("path of a KubeSchedulerConfiguration; it is watched, and read again when it changes", "")
    scheduler_name: str = option(
        "spec.schedulerName of the pods that it schedules, without --config", SCHEDULER_NAME_DEFAULT
    )
    lease: str = option("namespace/name of the Lease that its replicas share", f"{NAMESPACE_SYSTEM}/{LEASE_SCHEDULER}")
    lease_duration_seconds: float = option("how long a leader that fell silent is waited for", 15.0)
    renew_deadline_seconds: float = option("how long a leader that cannot renew goes on", 10.0)
    retry_period_seconds: float = option("how often a leader renews", 2.0)
    plugin_seconds_max: float = option("how long a plugin may compute until it is interrupted; 0: for ever", 5.0)
    seed: int = option("fixes the order among nodes with equal scores", 0)

    def __post_init__(self) -> None:
        CommonSettings.__post_init__(self)
        if not self.apiserver:
            raise SettingsError("--apiserver names no server")
        for server in self.apiserver:
            check_address("--apiserver", server)
        if self.lease.count("/") != 1:
            raise SettingsError(f"--lease {self.lease!r} is not namespace/name")
        if not (self.plugin_seconds_max == 0 or 0.1 <= self.plugin_seconds_max <= PLUGIN_SECONDS_MAX):
            raise SettingsError(f"--plugin-seconds-max {self.plugin_seconds_max} is neither 0 nor 0.1 to 3600")
        if not 0 <= self.seed < 1 << 63:
            raise SettingsError(f"--seed {self.seed} is not between 0 and 2^63 - 1")
        try:
            self.election()
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def election(self) -> ElectionSettings:
        return ElectionSettings(self.lease_duration_seconds, self.renew_deadline_seconds, self.retry_period_seconds)
