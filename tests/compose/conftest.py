"""The project, up and loaded, for all tests of this folder."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.compose.project import Project, new_project
from tests.shared_data import ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These take minutes and a Docker host: asked for by ORRERY_COMPOSE=1, which `make test-compose` sets."""
    if os.environ.get("ORRERY_COMPOSE"):
        return
    skip = pytest.mark.skip(reason="the compose project is tested by make test-compose")
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "compose"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def project() -> Iterator[Project]:
    if shutil.which("docker") is None:
        pytest.fail("ORRERY_COMPOSE is set, and there is no docker command")
    made = new_project()
    made.compose("down", "--volumes", "--timeout", "3", check=False)
    made.compose("build", "--quiet")
    try:
        made.compose("up", "--detach", "--wait", "--no-build")
        yield made
    finally:
        made.compose("--profile", "lab", "down", "--volumes", "--timeout", "3", check=False)


@pytest.fixture(autouse=True)
def well(request: pytest.FixtureRequest) -> None:
    """Each test begins with a mesh that is whole, whatever the one before did to it."""
    if "project" in request.fixturenames:
        made: Project = request.getfixturevalue("project")
        made.compose("up", "--detach", "--no-build", "--no-recreate")
        made.wait_until("a mesh that is whole", made.is_well)
