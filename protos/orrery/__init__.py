"""Everything of the package `orrery`."""
