"""The trace store: OTLP in, Jaeger's query API out, for a lab without Jaeger.

`ingest` takes what comes over OTLP/gRPC into the span file and passes it on, `search` and `answers` find spans and put
them into Jaeger's words, `http` serves those. It decides nothing about spans: what is kept, processes decide.
"""
