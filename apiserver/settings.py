"""The API server's settings."""

from dataclasses import dataclass

from services.model.names import LEASE_SCHEDULER, NAMESPACE_SYSTEM, SCHEDULER_NAME_DEFAULT
from services.runtime.settings import CommonSettings, SettingsError, check_address, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerSettings(CommonSettings):
    """See `python -m apiserver --help`."""

    etcd: tuple[str, ...] = option("host:port of each etcd member", ("127.0.0.1:2379",))
    scheduler_lease: tuple[str, ...] = option(
        "schedulerName=namespace/lease: pods of that scheduler are bound only with a fence of that lease",
        (f"{SCHEDULER_NAME_DEFAULT}={NAMESPACE_SYSTEM}/{LEASE_SCHEDULER}",),
    )
    compaction_seconds: float = option("history kept in etcd, in seconds; 0 keeps all", 300.0)

    def __post_init__(self) -> None:
        CommonSettings.__post_init__(self)
        if not self.etcd:
            raise SettingsError("--etcd names no member")
        for member in self.etcd:
            check_address("--etcd", member)
        for item in self.scheduler_lease:
            name, equals, lease = item.partition("=")
            if not (name and equals and lease.count("/") == 1):
                raise SettingsError(f"--scheduler-lease {item!r} is not schedulerName=namespace/lease")
        if self.compaction_seconds < 0:
            raise SettingsError("--compaction-seconds must not be negative")

    def leases(self) -> dict[str, str]:
        """schedulerName -> namespace/name of its Lease."""
        return dict(item.split("=", 1) for item in self.scheduler_lease)
