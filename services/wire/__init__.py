"""Between protobuf and everything else: bytes to projections, manifests to messages and back.

The only place that knows protobuf and the model both. Decisions do not belong here.
"""
