"""What goes wrong in the lab in a way that a person can do something about."""


class LabError(Exception):
    """The message is one sentence for the person at the terminal, and says what to do. Exit code 1."""


class MeshDown(LabError):
    """A command needs a mesh, and none runs under this name."""

    def __init__(self, name: str) -> None:
        start = "orrery up" if name == "default" else f"orrery up --context {name}"
        if name == "compose":
            start = "make lab, or: docker compose up -d --wait"
        super().__init__(f"mesh {name!r} is not up; start it with: {start}")
