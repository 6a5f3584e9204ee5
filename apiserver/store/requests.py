"""Between the `Store` vocabulary and etcd's messages: what is sent, what comes back, and what an error proves."""

import grpc

from apiserver.store.protocol import (
    Compare,
    Delete,
    Member,
    MemberResult,
    Put,
    Record,
    Relation,
    StoreError,
    StoreEvent,
    StoreInvalid,
    StoreNoSpace,
    StoreOutcomeUnknown,
    StoreTooLarge,
    StoreUnavailable,
    Target,
    TxnResult,
)
from protos.orrery.etcd.v1 import etcd_pb2 as pb

_RELATIONS = {
    Relation.EQUAL: pb.Compare.EQUAL,
    Relation.NOT_EQUAL: pb.Compare.NOT_EQUAL,
    Relation.GREATER: pb.Compare.GREATER,
    Relation.LESS: pb.Compare.LESS,
}

# etcd's own words (api/v3rpc/rpctypes/error.go); they are part of its API.
COMPACTED = "required revision has been compacted"
_FUTURE = "required revision is a future revision"
_NO_SPACE = "database space exceeded"
_TOO_LARGE = ("too many operations in txn request", "request is too large", "received message larger than max")
_CONTRADICTION = ("duplicate key given in txn request", "key is not provided", _FUTURE)
# The request did not leave this process, or was turned away before it was proposed.
_NOT_DONE = (
    "failed to connect to",
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: not capable",
    "etcdserver: rpc not supported for learner",
    "dns resolution failed",
    "etcdserver: corrupt cluster",
    "raft proposal dropped",
)
# Our own side would not take the answer, which was therefore given.
_ANSWER_TOO_LARGE = "client: received message larger than max"


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, in etcd's form: b"\\0" is the end of the keyspace."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else b"\0"


def txn_request(members: tuple[Member, ...]) -> pb.TxnRequest:
    """One member is a plain Txn; several are a Txn without comparisons whose operations are Txns."""
    if len(members) == 1:
        return _member_request(members[0])
    return pb.TxnRequest(success=[pb.RequestOp(request_txn=_member_request(member)) for member in members])


def _member_request(member: Member) -> pb.TxnRequest:
    return pb.TxnRequest(
        compare=[_compare(compare) for compare in member.compares],
        success=[_write(write) for write in member.writes],
        failure=[pb.RequestOp(request_range=pb.RangeRequest(key=key)) for key in member.reads],
    )


def _compare(compare: Compare) -> pb.Compare:
    relation = _RELATIONS[compare.relation]
    if compare.target is Target.CREATE_REVISION:
        return pb.Compare(result=relation, target=pb.Compare.CREATE, key=compare.key, create_revision=compare.revision)
    return pb.Compare(result=relation, target=pb.Compare.MOD, key=compare.key, mod_revision=compare.revision)


def _write(write: Put | Delete) -> pb.RequestOp:
    if isinstance(write, Put):
        return pb.RequestOp(request_put=pb.PutRequest(key=write.key, value=write.value))
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=write.key))


def txn_result(members: tuple[Member, ...], response: pb.TxnResponse) -> TxnResult:
    if len(members) == 1:
        return TxnResult(response.header.revision, (_member_result(response),))
    return TxnResult(
        response.header.revision, tuple(_member_result(answer.response_txn) for answer in response.responses)
    )


def _member_result(response: pb.TxnResponse) -> MemberResult:
    if response.succeeded:
        return MemberResult(True)
    ranges = (answer.response_range for answer in response.responses)
    return MemberResult(False, tuple(record(found.kvs[0]) if found.kvs else None for found in ranges))


def record(kv: pb.KeyValue) -> Record:
    return Record(kv.key, kv.value, kv.create_revision, kv.mod_revision)


def store_event(event: pb.Event) -> StoreEvent:
    return StoreEvent(event.type == pb.Event.DELETE, record(event.kv))


def store_error(code: grpc.StatusCode, details: str, *, write: bool) -> StoreError:
    """What a failed call proves. Compaction is not among it: the error does not say the revision.

    A write that failed in a way not listed as harmless has an unknown outcome: a timeout, a lost connection and a change
    of leader all leave a proposal that may yet be applied.
    """
    lowered = details.lower()
    text = f"etcd: {details or code.name}"
    if _ANSWER_TOO_LARGE in lowered:
        return StoreOutcomeUnknown(text) if write else StoreTooLarge(text)
    if _NO_SPACE in lowered:
        return StoreNoSpace(text)
    if any(words in lowered for words in _TOO_LARGE):
        return StoreTooLarge(text)
    if any(words in lowered for words in _CONTRADICTION):
        return StoreInvalid(text)
    if not write or any(words in lowered for words in _NOT_DONE):
        return StoreUnavailable(text)
    return StoreOutcomeUnknown(text)
