"""The `orrery` command: starts, stops, loads, breaks, checks and explains a mesh. The composition root: nothing imports it."""
