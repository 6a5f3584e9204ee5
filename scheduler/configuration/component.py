"""What every Kubernetes component's configuration has: leaderElection and clientConnection (component-base, 1.36).

Neither has an effect here, where the command line decides; a wrong one is refused all the same, so that a file that is
good here is good there.
"""

from protos.orrery.v1 import scheduler_configuration_pb2 as pb
from scheduler.configuration.checks import Fail, duration_seconds
from services.wire.field_errors import Steps

# Kubernetes' defaults, by which relations are judged where only one side is given.
_DEFAULTS = {"leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s"}


def check_leader_election(election: pb.LeaderElectionConfiguration, fail: Fail) -> None:
    """Durations are positive, and leaseDuration > renewDeadline > retryPeriod, unless leaderElect is false."""
    texts = {
        "leaseDuration": election.lease_duration,
        "renewDeadline": election.renew_deadline,
        "retryPeriod": election.retry_period,
    }
    seconds: dict[str, float] = {}
    for name, text in texts.items():
        value = duration_seconds(text or _DEFAULTS[name])
        if value is None:
            fail(("leaderElection", name), f"{text[:80]!r} is no duration, such as 15s")
        elif value <= 0 and _elects(election):
            fail(("leaderElection", name), f"{text} must be greater than zero")
        else:
            seconds[name] = value
    if not _elects(election):
        return
    for longer, shorter in (("leaseDuration", "renewDeadline"), ("renewDeadline", "retryPeriod")):
        if longer in seconds and shorter in seconds and seconds[longer] <= seconds[shorter]:
            where: Steps = ("leaderElection", longer if texts[longer] else shorter)
            fail(
                where,
                f"{longer} ({texts[longer] or _DEFAULTS[longer]}) must be greater than "
                f"{shorter} ({texts[shorter] or _DEFAULTS[shorter]})",
            )
    if election.resource_lock not in ("", "leases"):
        fail(("leaderElection", "resourceLock"), f"{election.resource_lock!r} must be leases")


def _elects(election: pb.LeaderElectionConfiguration) -> bool:
    return election.leader_elect or not election.HasField("leader_elect")


def check_client_connection(client: pb.ClientConnectionConfiguration, fail: Fail) -> None:
    if client.burst < 0:
        fail(("clientConnection", "burst"), f"{client.burst} must be non-negative")
