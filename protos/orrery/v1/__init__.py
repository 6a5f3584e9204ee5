"""Kubernetes' kinds and ours, and the services between the processes. Generated; `make protos` renews them."""
