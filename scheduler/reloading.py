"""The configuration in force: read at start, watched, read again, and kept at the last good one.

A file that is wrong at start ends the process; one that becomes wrong later is reported, in the log and to whoever asks,
and the scheduler goes on with the one before. The file is looked at once a second; editors and mounted volumes replace
it in ways that notifications miss.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from protos.orrery.v1.scheduler_pb2 import SchedulerConfigurationStatus
from scheduler.configuration.read import default_configuration, read_configuration
from scheduler.configuration.registry import Registry, installed_plugins
from scheduler.configuration.types import ConfigurationErrors, ProfileConfiguration, SchedulerConfiguration
from scheduler.core.events import ProfilesChanged
from scheduler.core.profile import Profile
from scheduler.plugins.registry import PLUGINS
from services.model.clock import Clock
from services.runtime.logging import Logger

PERIOD_SECONDS = 1.0
PROBLEMS_LOGGED_MAX = 5


def make_profile(configuration: ProfileConfiguration) -> Profile:
    """The profile as the core runs it."""
    plugins = list(configuration.plugins.values())
    return Profile(configuration.scheduler_name, plugins, configuration.weights, configuration.points)


def profiles_changed(configuration: SchedulerConfiguration) -> ProfilesChanged:
    return ProfilesChanged(
        tuple(make_profile(profile) for profile in configuration.profiles),
        configuration.backoff_first_seconds,
        configuration.backoff_seconds_max,
    )


class ConfigurationKeeper:
    """`path` empty: the default configuration, for pods of `scheduler_name`. `on_change` gets each new one.

    Raises:
        OSError: the file cannot be read, or is wrong, at start.
    """

    def __init__(
        self,
        path: str,
        clock: Clock,
        log: Logger,
        on_change: Callable[[SchedulerConfiguration], None],
        *,
        registry: Registry | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._log = log
        self._on_change = on_change
        self._registry = registry or (installed_plugins() if path else Registry(PLUGINS))
        self._seen: bytes | None = None
        self._hash = ""
        self.problems: tuple[str, ...] = ()
        if not path:
            self.current = default_configuration()
            return
        try:
            text = Path(path).read_bytes()
            self.current = read_configuration(text.decode(), path, self._registry)
        except (ConfigurationErrors, UnicodeDecodeError) as error:
            raise OSError(f"the configuration is wrong:\n{error}") from error
        self._seen, self._hash = text, _hash(text)

    @property
    def hash(self) -> str:
        """Of the text in force; empty for the default configuration."""
        return self._hash

    @property
    def error(self) -> str:
        """Why the file as it is now is not in force; empty when it is."""
        return "; ".join(self.problems)

    async def run(self) -> None:
        """Watches the file; ends only by cancellation."""
        while self._path:
            await self._clock.sleep(PERIOD_SECONDS)
            self.look()

    def look(self) -> None:
        """Reads the file, and takes it into force when it changed and is good."""
        if not self._path:
            return
        try:
            text = Path(self._path).read_bytes()
        except OSError as error:
            self._reject(None, (f"{self._path}: {error.strerror}",))
            return
        if text == self._seen:
            return
        try:
            configuration = read_configuration(text.decode(), self._path, self._registry)
        except ConfigurationErrors as errors:
            self._reject(text, tuple(f"{self._path}: {problem}" for problem in errors.problems))
            return
        except UnicodeDecodeError as error:
            self._reject(text, (f"{self._path}: {error}",))
            return
        self._seen, self.problems = text, ()
        if _hash(text) == self._hash:
            return
        self._hash, self.current = _hash(text), configuration
        self._log.info(
            "configuration_in_force", path=self._path, hash=self._hash, profiles=configuration.scheduler_names
        )
        self._on_change(configuration)

    def _reject(self, text: bytes | None, problems: tuple[str, ...]) -> None:
        if problems != self.problems:
            self._log.error("configuration_rejected", problems=problems[:PROBLEMS_LOGGED_MAX], in_force=self._hash)
        self._seen, self.problems = text, problems

    def status(self) -> SchedulerConfigurationStatus:
        """For SchedulerInspection."""
        told = SchedulerConfigurationStatus(
            source=self._path, hash=self._hash, notes=self.current.notes, problems=self.problems
        )
        for profile in self.current.profiles:
            item = told.profiles.add(scheduler_name=profile.scheduler_name)
            for point, names in profile.points.items():
                at = item.points.add(point=point)
                for name in names:
                    at.plugins.add(name=name, weight=profile.weights.get(name, 0) if point == "score" else 0)
        return told


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
