"""DefaultBinder: the pod is bound through the API server's Bind. The shell carries it out."""

from scheduler.core.framework import Plugin


class DefaultBinder(Plugin):
    """Marks the profile as one that binds through the API server, which is the only way there is."""

    name = "DefaultBinder"
