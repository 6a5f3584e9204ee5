"""The fields of an object that selectors may ask for, from its bytes."""

from google.protobuf.message import Message

from protos.orrery.v1.envelope_pb2 import Envelope
from protos.orrery.v1.event_pb2 import Event
from protos.orrery.v1.namespace_pb2 import NamespaceStatus
from protos.orrery.v1.node_pb2 import NodeSpec
from protos.orrery.v1.pod_pb2 import PodSpec, PodStatus


def selector_fields(resource: str, value: bytes, envelope: Envelope) -> dict[str, str]:
    """Field paths and their text for one object of `resource`, as Kubernetes' field selectors see them."""
    fields = {"metadata.name": envelope.metadata.name, "metadata.namespace": envelope.metadata.namespace}
    match resource:
        case "pods":
            spec, status = PodSpec.FromString(envelope.spec), PodStatus.FromString(envelope.status)
            fields |= {
                "spec.nodeName": spec.node_name,
                "spec.schedulerName": spec.scheduler_name,
                "spec.restartPolicy": spec.restart_policy,
                "status.phase": status.phase,
                "status.nominatedNodeName": status.nominated_node_name,
            }
        case "nodes":
            fields["spec.unschedulable"] = "true" if NodeSpec.FromString(envelope.spec).unschedulable else "false"
        case "namespaces":
            fields["status.phase"] = NamespaceStatus.FromString(envelope.status).phase
        case "events":
            fields |= _event_fields(Event.FromString(value))
    return fields


def _event_fields(event: Message) -> dict[str, str]:
    assert isinstance(event, Event)
    return {
        "involvedObject.kind": event.involved_object.kind,
        "involvedObject.namespace": event.involved_object.namespace,
        "involvedObject.name": event.involved_object.name,
        "involvedObject.uid": event.involved_object.uid,
        "reason": event.reason,
        "type": event.type,
    }
