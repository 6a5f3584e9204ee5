"""The typed side of the API: a client, an informer (list + watch into a cache of bytes), leader election.

Everything goes through `services.runtime.transport.Channel`, so the same code runs over gRPC and in a simulation.
"""
