"""The command line: one module for each group of commands, each thin over a module of `services.lab`.

Exit codes: 0 what was asked holds, 1 it does not (refused, violated, failed), 2 the command was used wrongly.
Commands import what they need when they run, so that `orrery --help` is quick.
"""

from services.lab.cli.root import main

__all__ = ["main"]
