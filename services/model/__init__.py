"""The pure vocabulary of a cluster: quantities, selectors, pod requests, topology, devices, errors, and the clock's shape.

No input or output, no protobuf, no asyncio loop: cores, shells and tools all import this, and it imports nothing of
ours. What reads protobuf bytes belongs in `services.wire`.
"""
