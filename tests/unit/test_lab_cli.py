"""The command line where no mesh runs: usage, exit codes, sentences."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from services.lab.cli.root import SECTIONS, orrery

COMMANDS = [name for _, _, names in SECTIONS for name in names]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def invoke(home: Path, words: Sequence[str], stdin: str | None = None) -> Result:
    return CliRunner().invoke(orrery, list(words), input=stdin, env={"ORRERY_HOME": str(home), "ORRERY_CONTEXT": None})


def test_help_lists_every_command(home: Path) -> None:
    result = invoke(home, ["--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(home: Path, command: str) -> None:
    result = invoke(home, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage: orrery" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["get", "pods"],
        ["topo", "n"],
        ["explain", "pod/x"],
        ["trace", "pod/x"],
        ["check"],
        ["env"],
        ["logs", "etcd"],
        ["kill", "scheduler", "--leader"],
        ["delete", "pod", "x"],
    ],
)
def test_without_a_mesh_a_command_says_how_to_start_one(home: Path, words: list[str]) -> None:
    result = invoke(home, words)
    assert (result.exit_code, result.output) == (1, "Error: mesh 'default' is not up; start it with: orrery up\n")


def test_the_sentence_names_the_mesh_that_was_meant(home: Path) -> None:
    for words in (
        ["--context", "b", "status"],
        ["status", "--context", "b"],
        ["--context", "a", "status", "--name", "b"],
    ):
        assert "start it with: orrery up --context b" in invoke(home, words).output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["get"], "name a kind"),
        (["get", "pod", "a", "node/b"], "not both"),
        (["get", "pods,nodes", "a"], "do not go together"),
        (["get", "pods,nodes", "-w"], "follows one kind"),
        (["get", "pods", "-o", "xml"], "xml"),
        (["apply"], "name what to apply"),
        (["delete"], "name either objects"),
        (["delete", "pod", "x", "-f", "y"], "name either objects"),
        (["delete", "pods"], "--all, or --selector"),
        (["explain", "node/x"], "is no pod"),
        (["kill", "scheduler-0", "--signal", "NONE"], "is no signal"),
        (["replay", "--nodes", "x"], "--pods"),
        (["up", "--apiservers", "0"], "--apiservers"),
    ],
)
def test_wrong_usage_is_code_2_and_a_sentence(home: Path, words: list[str], says: str) -> None:
    result = invoke(home, words)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["get", "widgets"], "there is no kind 'widgets'; there are pods (po), nodes (no)"),
        (["--context", "A/B", "status"], "cannot name a mesh"),
        (["up", "--shape", "dgx-h900"], "is no machine shape"),
        (["replay", "--nodes", "none.csv", "--pods", "none.csv"], "none.csv cannot be read"),
    ],
)
def test_what_is_refused_is_code_1_and_a_sentence(home: Path, words: list[str], says: str) -> None:
    result = invoke(home, words)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert says in result.output
    assert result.output.count("\n") == 1


def test_down_without_a_mesh_says_so_and_succeeds(home: Path) -> None:
    result = invoke(home, ["down"])
    assert (result.exit_code, result.output) == (0, "mesh 'default' does not exist; there is nothing to stop\n")


def test_a_state_directory_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    result = invoke(tmp_path / "home", ["up"])
    assert result.exit_code == 1
    assert "is not writable" in result.output
    assert "ORRERY_HOME" in result.output


def test_doctor_looks_at_everything_and_leaves_no_folder(home: Path) -> None:
    result = invoke(home, ["doctor"])
    for subject in ("Python", "etcd", "ports", "file limit", "disk", "state directory", "mesh default"):
        assert subject in result.output
    assert not (home / "default").exists()
