"""The spans of a lab without Jaeger: an embedded, bounded store on SQLite, its exporter and its reader."""
