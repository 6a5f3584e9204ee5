"""The `orrery` command."""

from services.lab.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
