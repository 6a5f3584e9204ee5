"""A Service's and a Namespace's bytes to their projections."""

from collections.abc import Mapping

from google.protobuf.message import DecodeError as ProtobufDecodeError

from protos.orrery.v1 import namespace_pb2, service_pb2
from services.model.cluster import ServiceView
from services.wire.metadata import DecodeError


def service_view(value: bytes, _resource_version: str) -> ServiceView:
    """The projection of one stored Service. Raises DecodeError."""
    try:
        service = service_pb2.Service.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError(f"{len(value)} bytes are not a Service: {error}") from error
    selector = dict(sorted(service.spec.selector.items()))
    return ServiceView(service.metadata.namespace, service.metadata.name, selector)


def namespace_labels(value: bytes, _resource_version: str) -> Mapping[str, str]:
    """The labels of one stored Namespace. Raises DecodeError."""
    try:
        namespace = namespace_pb2.Namespace.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError(f"{len(value)} bytes are not a Namespace: {error}") from error
    return dict(sorted(namespace.metadata.labels.items()))
