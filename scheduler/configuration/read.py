"""A file's text to a configuration, or to everything that is wrong with it."""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

from protos.orrery.v1 import scheduler_configuration_pb2 as pb
from scheduler.configuration.checks import Fail
from scheduler.configuration.component import check_client_connection, check_leader_election
from scheduler.configuration.profiles import ALL_NODES, ProfileReader
from scheduler.configuration.registry import Registry, installed_plugins
from scheduler.configuration.types import (
    API_VERSION,
    BACKOFF_FIRST_SECONDS,
    BACKOFF_SECONDS_MAX,
    KIND,
    ConfigurationErrors,
    Problem,
    ProfileConfiguration,
    SchedulerConfiguration,
)
from scheduler.plugins.registry import PLUGINS
from services.model.names import SCHEDULER_NAME_DEFAULT
from services.wire.codec import FieldErrors, from_json
from services.wire.documents import DocumentError, line_of, yaml_documents
from services.wire.field_errors import Steps, path_text

# Far above what people write, and read in a moment: a scheduler that reads a file that changed does nothing else.
FILE_BYTES_MAX = 1 << 18
PROFILES_MAX = 100
PLUGINS_NAMED_MAX = 5000
PROBLEMS_MAX = 100
MESSAGE_MAX = 600
_NOTES = {
    "parallelism": "all nodes are evaluated at once, as columns, so there is nothing to run in parallel",
    "percentageOfNodesToScore": ALL_NODES,
    "leaderElection": "the command line decides: --lease, --lease-duration-seconds and the like",
    "clientConnection": "the command line decides: --apiserver",
    "enableProfiling": "there is no profiling endpoint",
    "enableContentionProfiling": "there is no profiling endpoint",
    "delayCacheUntilActive": "a standby keeps its cache and queue, always, so that it takes over at once",
}


def read_configuration(text: str, source: str, registry: Registry | None = None) -> SchedulerConfiguration:
    """The configuration in `text`; `source` names it in errors, `registry` has the plugins that it may name.

    Raises:
        ConfigurationErrors: everything that is wrong with it.
    """
    return _Reader(source, registry or installed_plugins()).read(text)


@cache
def default_configuration() -> SchedulerConfiguration:
    """What a scheduler without a file has. To be shown; a scheduler makes plugins of its own."""
    text = f"apiVersion: {API_VERSION}\nkind: {KIND}\n"
    return read_configuration(text, "the default configuration", Registry(PLUGINS))


class _Reader:
    def __init__(self, source: str, registry: Registry) -> None:
        self._source = source
        self._registry = registry
        self._root: Any = None
        self._problems: list[Problem] = []

    def _fail(self, steps: Steps, message: str) -> None:
        said = message if len(message) <= MESSAGE_MAX else f"{message[:MESSAGE_MAX]}..."
        self._problems.append(Problem(line_of(self._root, steps), path_text(steps), said))

    def _fail_below(self, steps: Steps) -> Fail:
        return lambda inner, message: self._fail((*steps, *inner), message)

    def _stop(self) -> None:
        if self._problems:
            problems = sorted(dict.fromkeys(self._problems), key=lambda problem: problem.line)
            more = len(problems) - PROBLEMS_MAX
            if more > 0:
                problems[PROBLEMS_MAX:] = [Problem(problems[PROBLEMS_MAX].line, "", f"and {more} more from here on")]
            raise ConfigurationErrors(self._source, tuple(problems))

    def read(self, text: str) -> SchedulerConfiguration:
        message = self._message(text)
        self._check_sizes(message)
        self._numbers(message)
        profiles = self._profiles(message)
        self._stop()
        notes = tuple(f"{name}: {why}" for name, why in _NOTES.items() if name in self._root)
        return SchedulerConfiguration(
            profiles,
            float(message.pod_initial_backoff_seconds or BACKOFF_FIRST_SECONDS),
            float(message.pod_max_backoff_seconds or BACKOFF_SECONDS_MAX),
            notes,
        )

    def _message(self, text: str) -> pb.KubeSchedulerConfiguration:
        """The whole file as a message; stops at the first level that cannot be read at all."""
        if len(text) > FILE_BYTES_MAX:
            problem = Problem(1, "", f"{len(text)} characters are more than a configuration may have, {FILE_BYTES_MAX}")
            raise ConfigurationErrors(self._source, (problem,))
        try:
            documents = [document for document in yaml_documents(text, 1) if document is not None]
        except DocumentError as error:
            problem = Problem(error.line, path_text(error.steps), str(error))
            raise ConfigurationErrors(self._source, (problem,)) from error
        if len(documents) != 1 or not isinstance(documents[0], dict):
            what = f"it has {len(documents)} documents" if len(documents) != 1 else "its document is no object"
            raise ConfigurationErrors(self._source, (Problem(1, "", f"wanted one {KIND}; {what}"),))
        self._root = documents[0]
        for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
            if self._root.get(field) != wanted:
                found = self._root.get(field)
                self._fail((field,), f"{'is missing' if found is None else f'{found!r} is not known'}; write {wanted}")
        # Arguments are kept as they stand until their plugin is known, which numbers such as these do not survive.
        for steps, value in _not_finite(self._root, ()):
            self._fail(steps, f"wanted a finite number, found {value}")
        self._stop()
        try:
            return from_json(self._root, pb.KubeSchedulerConfiguration)
        except FieldErrors as error:
            for steps, (_, why) in zip(error.steps, error.errors, strict=True):
                self._fail(steps, why)
        self._stop()
        raise AssertionError("FieldErrors is never empty")

    def _check_sizes(self, message: pb.KubeSchedulerConfiguration) -> None:
        if len(message.profiles) > PROFILES_MAX:
            self._fail(("profiles", PROFILES_MAX), f"there are {len(message.profiles)}; at most {PROFILES_MAX} may be")
        named = 0
        for at, profile in enumerate(message.profiles):
            named += len(profile.plugin_config)
            for _, points in profile.plugins.ListFields():
                named += len(points.enabled) + len(points.disabled)
            if named > PLUGINS_NAMED_MAX:
                self._fail(("profiles", at), f"by here {named} plugins are named; at most {PLUGINS_NAMED_MAX} may be")
                break
        self._stop()

    def _numbers(self, message: pb.KubeSchedulerConfiguration) -> None:
        if message.HasField("parallelism") and message.parallelism <= 0:
            self._fail(("parallelism",), f"{message.parallelism} should be an integer value greater than zero")
        self._percentage(message, ())
        first = message.pod_initial_backoff_seconds or BACKOFF_FIRST_SECONDS
        if message.HasField("pod_initial_backoff_seconds") and message.pod_initial_backoff_seconds <= 0:
            self._fail(("podInitialBackoffSeconds",), "must be greater than 0")
        longest = (
            message.pod_max_backoff_seconds if message.HasField("pod_max_backoff_seconds") else BACKOFF_SECONDS_MAX
        )
        if longest < first:
            where: Steps = (
                ("podMaxBackoffSeconds",)
                if message.HasField("pod_max_backoff_seconds")
                else ("podInitialBackoffSeconds",)
            )
            self._fail(where, f"podMaxBackoffSeconds {longest} must be at least podInitialBackoffSeconds {first}")
        for at, _ in enumerate(message.extenders):
            self._fail(
                ("extenders", at), "extenders are not supported; write a plugin (entry point orrery.scheduler.plugins)"
            )
        check_leader_election(message.leader_election, self._fail)
        check_client_connection(message.client_connection, self._fail)

    def _percentage(self, message: Any, steps: Steps) -> None:
        if message.HasField("percentage_of_nodes_to_score") and not 0 <= message.percentage_of_nodes_to_score <= 100:
            found = message.percentage_of_nodes_to_score
            self._fail((*steps, "percentageOfNodesToScore"), f"{found} is not in the range 0 to 100")

    def _profiles(self, message: pb.KubeSchedulerConfiguration) -> tuple[ProfileConfiguration, ...]:
        given = list(message.profiles) or [pb.KubeSchedulerProfile()]
        read: list[ProfileConfiguration] = []
        names: set[str] = set()
        for at, profile in enumerate(given):
            steps: Steps = ("profiles", at)
            name = profile.scheduler_name
            if not name and len(given) == 1:
                name = SCHEDULER_NAME_DEFAULT
            if not name:
                self._fail((*steps, "schedulerName"), "is missing, and is needed where there are several profiles")
            elif name in names:
                self._fail((*steps, "schedulerName"), f"{name!r} stands there twice")
            names.add(name)
            self._percentage(profile, steps)
            data = self._root["profiles"][at] if message.profiles else {}
            read.append(ProfileReader(data, profile, self._registry, self._fail_below(steps)).read(name))
            if read[0].points["queueSort"] != read[-1].points["queueSort"]:
                self._fail(
                    (*steps, "plugins", "queueSort"), "has to be the same for all profiles: they share one queue"
                )
        return tuple(read)


def _not_finite(data: Any, steps: Steps) -> Iterator[tuple[Steps, float]]:
    """NaN and infinity, wherever they stand."""
    if isinstance(data, float) and not math.isfinite(data):
        yield steps, data
    elif isinstance(data, dict):
        for key, item in data.items():
            yield from _not_finite(item, (*steps, str(key)))
    elif isinstance(data, list):
        for at, item in enumerate(data):
            yield from _not_finite(item, (*steps, at))
