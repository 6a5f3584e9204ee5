"""Finished spans: their record, the bounded SQLite file that keeps them, and OpenTelemetry's way into it.

Processes of a mesh on one machine write to the file directly; `services.tracestore` serves it, and takes in what comes
over OTLP.
"""
