"""What an error of etcd proves about a write, by its own words."""

import grpc
import pytest

from apiserver.store.protocol import (
    StoreError,
    StoreInvalid,
    StoreNoSpace,
    StoreOutcomeUnknown,
    StoreTooLarge,
    StoreUnavailable,
)
from apiserver.store.requests import prefix_end, store_error

CODES = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "details", "wanted"),
    [
        (CODES.UNAVAILABLE, "failed to connect to all addresses; last error: ...", StoreUnavailable),
        (CODES.UNAVAILABLE, "etcdserver: no leader", StoreUnavailable),
        (CODES.RESOURCE_EXHAUSTED, "etcdserver: too many requests", StoreUnavailable),
        (CODES.UNAVAILABLE, "etcdserver: request timed out", StoreOutcomeUnknown),
        (CODES.UNAVAILABLE, "etcdserver: leader changed", StoreOutcomeUnknown),
        (CODES.UNAVAILABLE, "etcdserver: server stopped", StoreOutcomeUnknown),
        (CODES.UNAVAILABLE, "Socket closed", StoreOutcomeUnknown),
        (CODES.UNAVAILABLE, "Connection reset by peer", StoreOutcomeUnknown),
        (CODES.DEADLINE_EXCEEDED, "Deadline Exceeded", StoreOutcomeUnknown),
        (CODES.CANCELLED, "the store is closed", StoreOutcomeUnknown),
        (CODES.INTERNAL, "", StoreOutcomeUnknown),
        (CODES.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 8)", StoreOutcomeUnknown),
        (CODES.RESOURCE_EXHAUSTED, "grpc: received message larger than max (9 vs. 8)", StoreTooLarge),
        (CODES.INVALID_ARGUMENT, "etcdserver: request is too large", StoreTooLarge),
        (CODES.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", StoreTooLarge),
        (CODES.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", StoreInvalid),
        (CODES.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", StoreInvalid),
        (CODES.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", StoreNoSpace),
    ],
)
def test_a_failed_write_proves_no_more_than_its_error_says(
    code: grpc.StatusCode, details: str, wanted: type[StoreError]
) -> None:
    assert type(store_error(code, details, write=True)) is wanted


@pytest.mark.parametrize("details", ["Socket closed", "etcdserver: request timed out", "etcdserver: leader changed"])
def test_a_failed_read_is_never_unknown(details: str) -> None:
    assert type(store_error(CODES.UNAVAILABLE, details, write=False)) is StoreUnavailable


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"/a/", b"/a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0"), (b"a\xfe", b"a\xff")]
)
def test_a_prefix_ends_before_the_first_key_without_it(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end
