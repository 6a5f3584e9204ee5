"""The Api service: what each RPC is, over the parts that do it.

Built from a Store, a Clock and a random generator alone, so that it runs the same on etcd behind gRPC and in a
simulation. `run` owns the parts that work in the background: cache, committer, lanes, compaction.
"""

import asyncio
import random
from collections.abc import AsyncIterator

from apiserver.binding import Binder
from apiserver.cache import Cache
from apiserver.committer import Committer, Ridden
from apiserver.compaction import Compactor, expire
from apiserver.create import create
from apiserver.group_binding import GroupBinder
from apiserver.judging import Judge
from apiserver.lanes import TaskOwner
from apiserver.ledgers import Ledgers, Releaser
from apiserver.objects import Tools
from apiserver.reads import Reader
from apiserver.removal import delete
from apiserver.settings import ApiServerSettings
from apiserver.store.protocol import Store
from apiserver.tracing import Spans
from apiserver.update import patch_status, update, update_status
from apiserver.watching import Watcher
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
    Object,
    Operation,
    OperationResult,
    PatchRequest,
    WatchRequest,
    WatchResponse,
    WriteRequest,
    WriteResponse,
)
from protos.orrery.v1.namespace_pb2 import Namespace
from services.client.backoff import Backoff
from services.model.clock import Clock
from services.model.errors import AlreadyExists, ApiError, BadRequest, Unavailable
from services.model.names import ANNOTATION_TRACEPARENT, NAMESPACE_DEFAULT, NAMESPACE_NODE_LEASE, NAMESPACE_SYSTEM
from services.runtime.logging import Logger, silent
from services.runtime.sampling import sampling_rules
from services.runtime.status import status_of
from services.runtime.telemetry import current_traceparent
from services.runtime.transport import CallContext
from services.wire.metadata import read_envelope
from services.wire.pod import PodDecoder

BATCH_OPERATIONS_MAX = 2_000
SYSTEM_NAMESPACES = (NAMESPACE_DEFAULT, NAMESPACE_SYSTEM, NAMESPACE_NODE_LEASE)
DESCRIPTOR = api_pb2.DESCRIPTOR.services_by_name["Api"]


class ApiService:
    """`ready` is set once the caches are filled and the system's namespaces exist."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: ApiServerSettings,
        rng: random.Random,
        log: Logger | None = None,
    ) -> None:
        log = log or silent()
        self.ready = asyncio.Event()
        self.cache = Cache(store, clock, settings.name, log)
        self.committer = Committer(store, clock, log)
        self._owner = TaskOwner()
        self._clock = clock
        self._log = log
        self._rng = rng
        ledgers = Ledgers(self.cache)
        decoder = PodDecoder()
        releaser = Releaser(self._owner, ledgers, self.committer)
        self._tools = Tools(store, self.cache, self.committer, ledgers, releaser, decoder, clock, rng)
        self._reader = Reader(store, self.cache, ledgers)
        self._watcher = Watcher(self.cache, clock)
        self._spans = Spans(sampling_rules(settings))
        judge = Judge(self.cache, decoder, settings.leases())
        self._binder = Binder(store, self.cache, self.committer, ledgers, clock, self._owner, judge, self._spans)
        self._groups = GroupBinder(store, self.cache, self.committer, ledgers, clock, judge, self._spans)
        self.compactor = Compactor(store, self.cache, clock, settings.compaction_seconds, log)
        self.cache.on_batch.append(lambda: expire(self.cache))

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.cache.run())
                tasks.create_task(self.committer.run())
                tasks.create_task(self.compactor.run())
                tasks.create_task(self._begin())
        finally:
            self.ready.clear()
            await self._owner.close()

    async def _begin(self) -> None:
        """Makes the system's namespaces, then says ready."""
        await self.cache.filled.wait()
        backoff = Backoff(self._rng)
        for name in SYSTEM_NAMESPACES:
            while True:
                namespace = Namespace()
                namespace.metadata.name = name
                request = WriteRequest(resource="namespaces", value=namespace.SerializeToString())
                try:
                    await create(self._tools, request, "", [])
                    break
                except AlreadyExists:
                    break
                except ApiError as error:
                    self._log.warning("namespace_not_made", namespace=name, reason=error.message)
                    await self._clock.sleep(backoff.next_seconds())
        self.ready.set()

    # Reads.

    async def Get(self, request: GetRequest, _context: CallContext) -> Object:
        return await self._reader.get(request)

    async def List(self, request: ListRequest, _context: CallContext) -> ListResponse:
        return await self._reader.list(request)

    def Watch(self, request: WatchRequest, _context: CallContext) -> AsyncIterator[WatchResponse]:
        return self._watcher.watch(request)

    # Writes.

    async def Create(self, request: WriteRequest, context: CallContext) -> WriteResponse:
        return await self._create(request, current_traceparent() or context.traceparent)

    async def Update(self, request: WriteRequest, _context: CallContext) -> WriteResponse:
        return await update(self._tools, request)

    async def UpdateStatus(self, request: WriteRequest, _context: CallContext) -> WriteResponse:
        return await update_status(self._tools, request)

    async def PatchStatus(self, request: PatchRequest, _context: CallContext) -> WriteResponse:
        return await patch_status(self._tools, request)

    async def Delete(self, request: DeleteRequest, _context: CallContext) -> WriteResponse:
        return await delete(self._tools, request)

    async def Batch(self, request: BatchRequest, context: CallContext) -> BatchResponse:
        if len(request.operations) > BATCH_OPERATIONS_MAX:
            raise BadRequest(
                f"a batch has at most {BATCH_OPERATIONS_MAX} operations; this one has {len(request.operations)}"
            )
        fence = request.fence if request.HasField("fence") else None
        traceparent = current_traceparent() or context.traceparent
        results = await asyncio.gather(
            *(self._operation(item, fence, traceparent, omit=request.omit_objects) for item in request.operations)
        )
        return BatchResponse(results=results)

    async def _operation(
        self, operation: Operation, fence: Fence | None, traceparent: str, *, omit: bool
    ) -> OperationResult:
        which = operation.WhichOneof("operation")
        if which is None:
            return OperationResult(status=status_of(BadRequest("the operation is empty")))
        request = getattr(operation, which)
        if fence is not None and not request.HasField("fence"):
            request.fence.CopyFrom(fence)
        try:
            done = await self._dispatch(which, request, traceparent)
        except ApiError as error:
            return OperationResult(status=status_of(error))
        if omit:
            done.object.ClearField("value")
        return OperationResult(done=done)

    async def _dispatch(
        self, which: str, request: WriteRequest | PatchRequest | DeleteRequest, traceparent: str
    ) -> WriteResponse:
        match request:
            case DeleteRequest():
                return await delete(self._tools, request)
            case PatchRequest():
                return await patch_status(self._tools, request)
            case WriteRequest() if which == "create":
                return await self._create(request, traceparent)
            case WriteRequest() if which == "update":
                return await update(self._tools, request)
            case WriteRequest():
                return await update_status(self._tools, request)

    async def _create(self, request: WriteRequest, traceparent: str) -> WriteResponse:
        start_ns = self._clock.wall_ns()
        ridden: list[Ridden] = []
        response = await create(self._tools, request, traceparent, ridden)
        if request.resource == "pods":
            metadata = read_envelope(response.object.value).metadata
            parent = metadata.annotations.get(ANNOTATION_TRACEPARENT, "")
            self._spans.creation(metadata, parent, start_ns, self._clock.wall_ns(), ridden)
        return response

    # Binding.

    async def Bind(self, request: BindRequest, _context: CallContext) -> BindResponse:
        fence = request.fence if request.HasField("fence") else None
        return BindResponse(result=await self._binder.bind(request.binding, fence, self._tools.new_id()))

    async def BindBatch(self, request: BindBatchRequest, _context: CallContext) -> BindBatchResponse:
        if len(request.bindings) > BATCH_OPERATIONS_MAX:
            raise BadRequest(
                f"a batch has at most {BATCH_OPERATIONS_MAX} bindings; this one has {len(request.bindings)}"
            )
        fence = request.fence if request.HasField("fence") else None
        results = await asyncio.gather(*(self._bind(item, fence) for item in request.bindings))
        return BindBatchResponse(results=results)

    async def _bind(self, binding: Binding, fence: Fence | None) -> BindResult:
        """One of a batch: a store that does not answer is an unknown outcome, so that the others' answers stand."""
        try:
            return await self._binder.bind(binding, fence, self._tools.new_id())
        except Unavailable as error:
            return BindResult(outcome=api_pb2.UNKNOWN, message=error.message)

    async def BindGroup(self, request: BindGroupRequest, _context: CallContext) -> BindGroupResponse:
        fence = request.fence if request.HasField("fence") else None
        return await self._groups.bind_group(list(request.bindings), fence, self._tools.new_id())
