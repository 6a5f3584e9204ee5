"""Options of the processes: what is wrong is said in a sentence, with code 2, and where the value came from."""

from collections.abc import Mapping

import pytest

from apiserver.settings import ApiServerSettings
from kubelet_sim.settings import KubeletSettings
from scheduler.settings import SchedulerSettings
from services.runtime.settings import load_settings
from services.tracestore.settings import TraceStoreSettings

API, SCHEDULER, KUBELET = (
    (ApiServerSettings, "apiserver"),
    (SchedulerSettings, "scheduler"),
    (KubeletSettings, "kubelet_sim"),
)
STORE = (TraceStoreSettings, "services.tracestore")


def load(process: tuple[type, str], *argv: str, environ: Mapping[str, str] | None = None) -> object:
    cls, prog = process
    return load_settings(cls, argv, environ or {}, prog=prog, description="A process.")


@pytest.mark.parametrize(
    ("process", "argv", "says"),
    [
        (API, (), "--name is required: name of this process"),
        (API, ("--name", ""), "--name must not be empty"),
        (API, ("--name", "a", "--nmae", "b"), "unrecognized arguments: --nmae"),
        (API, ("--name", "a", "--listen", "here"), "--listen 'here' is not host:port, such as 127.0.0.1:6443"),
        (API, ("--name", "a", "--listen", "h:70000"), "is not host:port"),
        (API, ("--name", "a", "--log-level", "loud"), "'loud' is none of debug, info, warning, error"),
        (API, ("--name", "a", "--trace-ratio", "2"), "--trace-ratio 2.0 is not between 0 and 1"),
        (API, ("--name", "a", "--trace-ratio", "nan"), "--trace-ratio 'nan': wanted a finite number"),
        (API, ("--name", "a", "--trace-always", "odd"), "'odd' is none of failed, fenced, slow, preempting"),
        (API, ("--name", "a", "--etcd", ","), "--etcd names no member"),
        (API, ("--name", "a", "--etcd", "x"), "--etcd 'x' is not host:port"),
        (API, ("--name", "a", "--scheduler-lease", "x"), "'x' is not schedulerName=namespace/lease"),
        (API, ("--name", "a", "--compaction-seconds", "-1"), "must not be negative"),
        (SCHEDULER, ("--name", "a", "--apiserver", ","), "--apiserver names no server"),
        (SCHEDULER, ("--name", "a", "--lease", "x"), "'x' is not namespace/name"),
        (SCHEDULER, ("--name", "a", "--seed", "-1"), "--seed -1 is not between 0 and 2^63 - 1"),
        (SCHEDULER, ("--name", "a", "--seed", "1.5"), "--seed '1.5': wanted a whole number"),
        (
            SCHEDULER,
            ("--name", "a", "--lease-duration-seconds", "5", "--renew-deadline-seconds", "5"),
            "the lease duration must be longer than the renew deadline",
        ),
        (
            SCHEDULER,
            ("--name", "a", "--renew-deadline-seconds", "2", "--retry-period-seconds", "2"),
            "the renew deadline must be longer than the retry period times 1.2",
        ),
        (KUBELET, ("--name", "a"), "--apiserver is required"),
        (KUBELET, ("--name", "a", "--apiserver", "h:1", "--speed", "0"), "--speed 0.0 is not a positive number"),
        (
            KUBELET,
            ("--name", "a", "--apiserver", "h:1", "--lease-renew-seconds", "30"),
            "must be positive and at most half of --lease-duration-seconds 40",
        ),
        (STORE, ("--name", "a"), "--database is required"),
        (STORE, ("--name", "a", "--database", "x", "--forward", "y"), "--forward 'y' is not host:port"),
        (STORE, ("--name", "a", "--database", "x", "--spans-max", "1"), "--spans-max 1 is below"),
    ],
)
def test_a_wrong_option_ends_with_code_2_and_a_sentence(
    capsys: pytest.CaptureFixture[str], process: tuple[type, str], argv: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        load(process, *argv)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_environment_fills_in_and_is_named_when_it_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    given = load(
        SCHEDULER, "--name", "a", environ={"ORRERY_SCHEDULER_SEED": "7", "ORRERY_SCHEDULER_LOG_LEVEL": "debug"}
    )
    assert isinstance(given, SchedulerSettings) and (given.seed, given.log_level) == (7, "debug")
    won = load(SCHEDULER, "--name", "a", "--seed", "9", environ={"ORRERY_SCHEDULER_SEED": "7"})
    assert isinstance(won, SchedulerSettings) and won.seed == 9, "the command line wins"
    with pytest.raises(SystemExit) as ended:
        load(SCHEDULER, "--name", "a", environ={"ORRERY_SCHEDULER_SEED": "x"})
    assert ended.value.code == 2
    assert "ORRERY_SCHEDULER_SEED 'x': wanted a whole number" in capsys.readouterr().err


def test_the_environment_of_a_module_in_a_package_has_its_last_name() -> None:
    environ = {"ORRERY_TRACESTORE_DATABASE": "x", "ORRERY_TRACESTORE_FORWARD": ""}
    given = load(STORE, "--name", "a", environ=environ)
    assert isinstance(given, TraceStoreSettings) and given.database == "x" and given.forward == ""


@pytest.mark.parametrize("process", [API, SCHEDULER, KUBELET, STORE])
def test_help_lists_each_option_with_its_default(capsys: pytest.CaptureFixture[str], process: tuple[type, str]) -> None:
    import dataclasses

    with pytest.raises(SystemExit) as ended:
        load(process, "--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(process[0]):
        assert f"--{field.name.replace('_', '-')}" in text
    assert "the command line wins" in " ".join(text.split())
