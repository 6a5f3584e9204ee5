"""The house rules that can be counted: sizes, layers, words that must not stand anywhere, tests that cannot fail."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
PACKAGES = ("services", "apiserver", "scheduler", "kubelet_sim")
UNFINISHED = re.compile(r"NotImplementedError|\bTODO\b|\bFIXME\b|\bXXX\b|not implemented yet")
# A checker inside a called function counts: its name says so.
ASSERTING_CALL = re.compile(r"assert|raises|check|verify|expect")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def own_modules() -> list[Path]:
    return [path for path in tracked("*.py") if not path.name.endswith("_pb2.py")]


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_modules_are_found() -> None:
    assert len(own_modules()) > 20


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in own_modules()
        if path.relative_to(ROOT).parts[0] in PACKAGES and (lines := path.read_text().count("\n")) > MODULE_LINES_MAX
    }
    assert not long


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size} lines"
        for path in own_modules()
        for node in functions(path)
        if (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in own_modules()
        if path.relative_to(ROOT).parts[0] in PACKAGES and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not silent


def test_nothing_is_left_unfinished() -> None:
    here = Path(__file__)
    marked = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in own_modules()
        if path != here and (match := UNFINISHED.search(path.read_text()))
    ]
    assert not marked


def test_every_test_can_fail() -> None:
    blind = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in own_modules()
        if path.relative_to(ROOT).parts[0] == "tests"
        for node in functions(path)
        if node.name.startswith("test_") and not asserts(node)
    ]
    assert not blind


def asserts(node: ast.AST) -> bool:
    return any(
        isinstance(inner, ast.Assert | ast.Raise)
        or (isinstance(inner, ast.Call) and ASSERTING_CALL.search(ast.unparse(inner.func)))
        for inner in ast.walk(node)
    )


@pytest.mark.parametrize("name", ["utils", "helpers", "common"])
def test_no_module_is_named_for_nothing(name: str) -> None:
    assert not [path for path in own_modules() if name in path.relative_to(ROOT).with_suffix("").parts]


def test_the_environment_is_read_only_where_a_process_begins() -> None:
    """`os.environ` and `os.getenv` belong to a `__main__`; the lab's command line is one too."""
    readers = [
        str(path.relative_to(ROOT))
        for path in own_modules()
        if path.relative_to(ROOT).parts[0] in PACKAGES
        and path.name != "__main__.py"
        and path.relative_to(ROOT).parts[:2] != ("services", "lab")
        and re.search(r"os\.(environ|getenv)", path.read_text())
    ]
    assert not readers


def test_layers_hold() -> None:
    """import-linter's contracts of pyproject.toml: imports point down, cores are pure."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_no_file_names_a_machine_or_a_registry() -> None:
    """Paths of one machine and hosts of package registries have no place in the project."""
    pattern = re.compile(
        r"/root/|/home/[a-z]+/|files\.pythonhosted\.org|pypi\.org/simple|proxy\.golang\.org|deb\.debian\.org"
    )
    here = Path(__file__)
    named = []
    for path in tracked():
        if path == here:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if match := pattern.search(text):
            named.append(f"{path.relative_to(ROOT)}: {match.group()}")
    assert not named
