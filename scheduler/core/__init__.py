"""What the scheduler decides: framework, snapshot, queue, cycle, machine. Pure and synchronous: events and `now` in,
actions out. No asyncio, grpc, protobuf, logging, time or random.
"""
