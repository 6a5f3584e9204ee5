"""Spans of the API server: what a write or a bind came to, and under it each etcd transaction with what every comparison saw.

Made after the fact from what the write paths noted, for traces that are kept: by their ratio, or by rule when a bind was
refused or fenced, or a write was slow. Attributes follow OpenTelemetry's semantic conventions for databases; comparisons
are named by what they guard, not by their keys.
"""

from collections.abc import Sequence
from typing import Any

from opentelemetry.trace import SpanKind

from apiserver.committer import Committed, Ridden
from apiserver.core.groups import Change
from apiserver.core.keys import EPOCHS, LEDGER, REGISTRY
from apiserver.judging import Attempt
from apiserver.store.protocol import Compare
from protos.orrery.v1.api_pb2 import ALREADY_BOUND, BOUND, FENCED, BindOutcome, BindResult
from services.runtime.sampling import SamplingRules
from services.runtime.telemetry import Attributes, record_span


def comparisons_held(change: Change, committed: Committed) -> list[bool | None]:
    """Of each comparison whether it held; None where the answer does not tell. Success means that all did, else the
    records that were read on failure tell.
    """
    if committed.succeeded:
        return [True] * len(change.compares)
    records = dict(zip(change.reads, committed.records, strict=False))
    return [compare.holds(records[compare.key]) if compare.key in records else None for compare in change.compares]


def record_transactions(parent: str, ridden: Sequence[Ridden]) -> None:
    """A span for each transaction that a write rode in, under the write's own span."""
    for change, committed in ridden:
        held = comparisons_held(change, committed)
        record_span(
            "etcd.txn",
            parent=parent,
            start_ns=committed.began_ns,
            end_ns=committed.ended_ns,
            kind=SpanKind.CLIENT,
            attributes={
                "db.system.name": "etcd",
                "db.operation.name": "txn",
                "db.operation.batch.size": committed.group_size,
                "orrery.etcd.succeeded": committed.succeeded,
                "orrery.etcd.revision": committed.revision,
                "orrery.etcd.comparisons": [
                    f"{_guarded(compare)}: {_WORDS[how]}" for compare, how in zip(change.compares, held, strict=True)
                ],
            },
        )


_WORDS = {True: "held", False: "lost", None: "not known"}


def _guarded(compare: Compare) -> str:
    """What a comparison guards, in words: "pods default/web-0 mod_revision = 512"."""
    key = compare.key.decode(errors="replace")
    for prefix, what in ((REGISTRY, ""), (EPOCHS, "epoch "), (LEDGER, "ledger ")):
        start = prefix.decode()
        if key.startswith(start):
            key = what + key.removeprefix(start).removeprefix("core/").replace("/", " ", 0 if what else 1)
            break
    return f"{key} {compare.target.name.lower()} {compare.relation.value} {compare.revision}"


class Spans:
    """Records what the write paths noted. `rules`: what is kept beside the ratio."""

    def __init__(self, rules: SamplingRules) -> None:
        self._rules = rules

    def creation(self, metadata: Any, parent: str, start_ns: int, end_ns: int, ridden: Sequence[Ridden]) -> None:
        """The span of a pod's creation, in the pod's own trace. `metadata` is the created pod's ObjectMeta."""
        parent = self._rules.keep(parent, seconds=(end_ns - start_ns) / 1e9)
        if not parent:
            return
        about: Attributes = {
            "k8s.namespace.name": metadata.namespace,
            "k8s.pod.name": metadata.name,
            "k8s.pod.uid": metadata.uid,
        }
        span = record_span("apiserver.create", parent=parent, start_ns=start_ns, end_ns=end_ns, attributes=about)
        record_transactions(span, ridden)

    def bind(self, attempt: Attempt, result: BindResult, now_ns: int) -> None:
        """The span of one binding: what was compared, and what became of it."""
        binding, outcome = attempt.binding, BindOutcome.Name(result.outcome)
        refused = result.outcome not in (BOUND, ALREADY_BOUND)
        parent = self._rules.keep(
            binding.traceparent,
            failed=refused,
            fenced=result.outcome == FENCED,
            seconds=(now_ns - attempt.started_ns) / 1e9,
        )
        if not parent:
            return
        comparisons = result.comparisons
        attributes: dict[str, str | int | bool] = {
            "k8s.namespace.name": binding.namespace,
            "k8s.pod.name": binding.name,
            "k8s.pod.uid": binding.uid,
            "k8s.node.name": binding.node_name,
            "orrery.bind.outcome": outcome,
            "orrery.bind.transactions": attempt.attempts,
            "orrery.compare.pod": comparisons.pod,
            "orrery.compare.epoch": comparisons.epoch,
            "orrery.compare.ledger": comparisons.ledger,
        }
        if attempt.fence is not None:
            attributes |= {"orrery.lease": attempt.fence.lease, "orrery.fencing_token": attempt.fence.token}
        span = record_span(
            "apiserver.bind",
            parent=parent,
            start_ns=attempt.started_ns,
            end_ns=now_ns,
            attributes=attributes,
            error=f"{outcome}: {result.message}" if refused else "",
        )
        record_transactions(span, attempt.ridden)
