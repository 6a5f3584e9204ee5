"""The seam to durable state: the `Store` protocol and its two fillings, `etcd` (real) and `memory` (for simulation).

Both pass one contract suite. What keys and values mean is not known here.
"""
