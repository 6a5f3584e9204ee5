"""The typed client of the API server."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

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
    Fence,
    GetRequest,
    ListRequest,
    ListResponse,
    Operation,
    OperationResult,
    PatchRequest,
    WatchRequest,
    WatchResponse,
    WriteRequest,
    WriteResponse,
)
from services.runtime.transport import Channel, M

_SERVICE = "/" + api_pb2.DESCRIPTOR.services_by_name["Api"].full_name + "/"
PAGE_SIZE = 1000
# Named here because the client has a method `list`.
OperationResults = list[OperationResult]
BindResults = list[BindResult]


@dataclass(frozen=True, slots=True)
class Stored:
    """An object's bytes and its version."""

    value: bytes
    resource_version: str


class ApiClient:
    """One method for each RPC. Errors are `ApiError`s; every call ends within `timeout_seconds`.

    Writes are never repeated here: after `Unavailable` it is safe to, after `OutcomeUnknown` only the caller knows how.
    """

    def __init__(self, channel: Channel, *, timeout_seconds: float = 10.0) -> None:
        self.channel = channel
        self._timeout_seconds = timeout_seconds

    async def _call(self, method: str, request: Message, response_type: type[M], traceparent: str = "") -> M:
        metadata = {"traceparent": traceparent} if traceparent else None
        return await self.channel.unary(
            _SERVICE + method, request, response_type, timeout_seconds=self._timeout_seconds, metadata=metadata
        )

    async def get(self, resource: str, name: str, namespace: str = "", *, resource_version: str = "") -> Stored:
        """One object. Raises NotFound."""
        request = GetRequest(resource=resource, namespace=namespace, name=name, resource_version=resource_version)
        answer = await self._call("Get", request, api_pb2.Object)
        return Stored(answer.value, answer.resource_version)

    async def list(
        self,
        resource: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        page_size: int = PAGE_SIZE,
    ) -> tuple[list[Stored], str]:
        """All objects, page by page at one version, and that version. Raises Expired when it is compacted meanwhile."""
        request = ListRequest(
            resource=resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            limit=page_size,
        )
        items: list[Stored] = []
        while True:
            page = await self._call("List", request, ListResponse)
            items.extend(Stored(item.value, item.resource_version) for item in page.items)
            if not getattr(page, "continue"):
                return items, page.resource_version
            setattr(request, "continue", getattr(page, "continue"))
            request.resource_version = ""

    def watch(
        self,
        resource: str,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        allow_bookmarks: bool = True,
    ) -> AsyncIterator[WatchResponse]:
        """Events after `resource_version`, in order, until the connection or the window ends."""
        request = WatchRequest(
            resource=resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            allow_bookmarks=allow_bookmarks,
        )
        return self.channel.stream(_SERVICE + "Watch", request, WatchResponse)

    async def create(
        self, resource: str, message: Message, *, fence: Fence | None = None, traceparent: str = ""
    ) -> WriteResponse:
        """Raises AlreadyExists, Invalid, NotFound (the namespace)."""
        request = WriteRequest(resource=resource, value=message.SerializeToString(), fence=fence)
        return await self._call("Create", request, WriteResponse, traceparent)

    async def update(
        self, resource: str, message: Message, *, resource_version: str = "", fence: Fence | None = None
    ) -> WriteResponse:
        """Replaces everything but status. Raises Conflict when `resource_version` is given and no longer current."""
        request = WriteRequest(
            resource=resource, value=message.SerializeToString(), resource_version=resource_version, fence=fence
        )
        return await self._call("Update", request, WriteResponse)

    async def update_status(
        self, resource: str, message: Message, *, resource_version: str = "", fence: Fence | None = None
    ) -> WriteResponse:
        """Replaces status and nothing else."""
        request = WriteRequest(
            resource=resource, value=message.SerializeToString(), resource_version=resource_version, fence=fence
        )
        return await self._call("UpdateStatus", request, WriteResponse)

    async def patch_status(
        self,
        resource: str,
        name: str,
        namespace: str,
        patch: Mapping[str, Any],
        *,
        uid: str = "",
        resource_version: str = "",
        fence: Fence | None = None,
    ) -> WriteResponse:
        """Merges `patch` (the content of `status`, RFC 7386) into the status."""
        request = PatchRequest(
            resource=resource,
            namespace=namespace,
            name=name,
            patch=json.dumps({"status": patch}).encode(),
            uid=uid,
            resource_version=resource_version,
            fence=fence,
        )
        return await self._call("PatchStatus", request, WriteResponse)

    async def delete(
        self,
        resource: str,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
        fence: Fence | None = None,
    ) -> WriteResponse:
        """Raises NotFound, Conflict (another uid or version)."""
        request = DeleteRequest(
            resource=resource,
            namespace=namespace,
            name=name,
            uid=uid,
            resource_version=resource_version,
            grace_period_seconds=grace_period_seconds,
            fence=fence,
        )
        return await self._call("Delete", request, WriteResponse)

    async def batch(
        self, operations: Sequence[Operation], *, fence: Fence | None = None, omit_objects: bool = True
    ) -> OperationResults:
        """Many independent writes; the answers are in their order."""
        request = BatchRequest(operations=operations, fence=fence, omit_objects=omit_objects)
        return [*(await self._call("Batch", request, BatchResponse)).results]

    async def bind(self, binding: Binding, *, fence: Fence | None = None) -> BindResult:
        """One binding; the outcome is in the result, not raised."""
        return (await self._call("Bind", BindRequest(binding=binding, fence=fence), BindResponse)).result

    async def bind_batch(self, bindings: Sequence[Binding], *, fence: Fence | None = None) -> BindResults:
        """Many independent bindings; the results are in their order."""
        request = BindBatchRequest(bindings=bindings, fence=fence)
        return [*(await self._call("BindBatch", request, BindBatchResponse)).results]

    async def bind_group(self, bindings: Sequence[Binding], *, fence: Fence | None = None) -> BindGroupResponse:
        """All of them or none, in one transaction."""
        request = BindGroupRequest(bindings=bindings, fence=fence)
        return await self._call("BindGroup", request, BindGroupResponse)
