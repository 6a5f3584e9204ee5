"""What API servers answer, held against the store: an acknowledged write is there, at the version that was named.

Looks at every success that leaves a server, whoever asked, and whether or not the answer arrives.
"""

from apiserver.core.keys import registry_key
from protos.orrery.v1 import api_pb2
from protos.orrery.v1.api_pb2 import (
    BatchRequest,
    BatchResponse,
    BindBatchRequest,
    BindBatchResponse,
    BindGroupRequest,
    BindGroupResponse,
    Binding,
    BindRequest,
    BindResponse,
    BindResult,
    DeleteRequest,
    PatchRequest,
    WriteRequest,
    WriteResponse,
)
from services.model.kinds import KIND_BY_RESOURCE
from services.wire.metadata import read_envelope
from tests.simulation.invariants import Checker
from tests.simulation.story import Violation

_PODS = KIND_BY_RESOURCE["pods"]


class Answers:
    """`check(server, method, request, response)`; raises Violation."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker

    def check(self, server: str, method: str, request: bytes, response: bytes) -> None:
        name = method.rpartition("/")[2]
        if name in ("Create", "Update", "UpdateStatus"):
            self._write(server, WriteRequest.FromString(request), WriteResponse.FromString(response))
        elif name == "PatchStatus":
            self._write(server, PatchRequest.FromString(request), WriteResponse.FromString(response))
        elif name == "Delete":
            self._delete(server, DeleteRequest.FromString(request), WriteResponse.FromString(response))
        elif name == "Batch":
            self._batch(server, BatchRequest.FromString(request), BatchResponse.FromString(response))
        elif name == "Bind":
            self._bind(server, BindRequest.FromString(request).binding, BindResponse.FromString(response).result)
        elif name == "BindBatch":
            bindings = BindBatchRequest.FromString(request).bindings
            for binding, result in zip(bindings, BindBatchResponse.FromString(response).results, strict=True):
                self._bind(server, binding, result)
        elif name == "BindGroup":
            bindings, answer = BindGroupRequest.FromString(request).bindings, BindGroupResponse.FromString(response)
            if answer.outcome == api_pb2.BOUND:
                for binding, result in zip(bindings, answer.results, strict=True):
                    self._bind(server, binding, result)

    def _batch(self, server: str, request: BatchRequest, response: BatchResponse) -> None:
        for operation, result in zip(request.operations, response.results, strict=True):
            if not result.HasField("done"):
                continue
            which = operation.WhichOneof("operation")
            assert which is not None
            if which == "delete":
                self._delete(server, operation.delete, result.done)
            else:
                self._write(server, getattr(operation, which), result.done)

    def _write(self, server: str, request: WriteRequest | PatchRequest, response: WriteResponse) -> None:
        if isinstance(request, PatchRequest):
            namespace, name = request.namespace, request.name
        else:
            metadata = read_envelope(response.object.value or request.value).metadata
            namespace, name = metadata.namespace, metadata.name
        key = registry_key(KIND_BY_RESOURCE[request.resource], namespace, name)
        self._expect(server, key, response.object.resource_version, deleted=False)
        if response.fencing_token and not self._checker.has_epoch(f"{namespace}/{name}", response.fencing_token):
            raise Violation("4", f"{server} gave token {response.fencing_token} of {key.decode()}, which never was")

    def _delete(self, server: str, request: DeleteRequest, response: WriteResponse) -> None:
        key = registry_key(KIND_BY_RESOURCE[request.resource], request.namespace, request.name)
        if response.object.resource_version:
            self._expect(server, key, response.object.resource_version, deleted=not response.terminating)

    def _bind(self, server: str, binding: Binding, result: BindResult) -> None:
        if result.outcome not in (api_pb2.BOUND, api_pb2.ALREADY_BOUND):
            return
        key = registry_key(_PODS, binding.namespace, binding.name)
        self._expect(server, key, result.resource_version, deleted=False)
        if result.node_name != binding.node_name:
            raise Violation("4", f"{server} acknowledged {binding.name} on {result.node_name}", (binding.name,))

    def _expect(self, server: str, key: bytes, version: str, *, deleted: bool) -> None:
        self._checker.checks["4"] += 1
        if not (version and self._checker.has_version(key, int(version), deleted=deleted)):
            what = "deletion" if deleted else "write"
            path = key.decode().rpartition("/")[2]
            raise Violation("4", f"{server} acknowledged a {what} of {key.decode()} at {version!r}, not there", (path,))
