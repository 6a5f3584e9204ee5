"""What the API server decides, without doing anything: validation, versions, selectors, watch fan-out, the planning of
write groups, ledger arithmetic. No asyncio, no grpc, no etcd; time comes in as an argument.
"""
