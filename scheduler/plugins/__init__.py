"""The plugins, one module each, and the one literal registry of them (`registry`)."""
