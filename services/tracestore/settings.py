"""Settings of the trace store. Ports are OTLP's (4317) and Jaeger's (16686)."""

from dataclasses import dataclass

from services.runtime.settings import CommonSettings, SettingsError, check_address, option
from services.spans.store import BYTES_MAX, SPANS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStoreSettings(CommonSettings):
    """See `python -m services.tracestore --help`. `listen` is where OTLP/gRPC comes in."""

    database: str = option("path of the SQLite file that keeps the spans; other processes may write it too")
    query_listen: str = option(
        "host:port of Jaeger's query API over HTTP; port 0 takes any free one", "127.0.0.1:16686"
    )
    forward: str = option("host:port of a further OTLP/gRPC collector, such as Jaeger, that gets everything too", "")
    spans_max: int = option("spans kept; beyond that the oldest go", SPANS_MAX)
    megabytes_max: int = option("size of what is kept, in MiB", BYTES_MAX >> 20)

    def __post_init__(self) -> None:
        CommonSettings.__post_init__(self)
        if not self.database:
            raise SettingsError("--database must not be empty")
        check_address("--query-listen", self.query_listen)
        if self.forward:
            check_address("--forward", self.forward)
            if self.forward == self.listen:
                raise SettingsError(f"--forward {self.forward} is this process itself")
        if self.spans_max < 1_000:
            raise SettingsError(f"--spans-max {self.spans_max} is below 1000")
        if self.megabytes_max < 1:
            raise SettingsError(f"--megabytes-max {self.megabytes_max} is below 1")
