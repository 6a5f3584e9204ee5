"""Each lab's script, as a learner runs it, with fewer pods; and what its page promises of the output."""

import re

import pytest

from tests.compose.project import Project
from tests.shared_data import ROOT

pytestmark = pytest.mark.timeout(600)
PODS = "1000"


def lab(project: Project, script: str) -> str:
    done = project.run("env", f"LAB_PODS={PODS}", "bash", f"docs/labs/{script}", check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_lab_1_kill_the_leader(project: Project) -> None:
    said = lab(project, "1-kill-the-leader.sh")
    first, second = re.findall(r"^== (scheduler-\d) leads", said, re.MULTILINE)
    assert first != second
    assert "1,000 of 1,000 bound" in said and "everything agrees" in said and "Lab 1 holds." in said
    trace = said[said.index("orrery trace pod/late") :]
    # How much of a reason there is room for depends on the tree's width.
    assert re.search(rf"scheduler\.attempt +{first} .* 0/100 nodes are", trace), trace
    assert re.search(rf"scheduler\.bind +{second} .*BOUND|apiserver\.bind", trace)
    assert "kubelet.start" in trace


def test_lab_2_pause_the_leader(project: Project) -> None:
    said = lab(project, "2-pause-the-leader.sh")
    assert "everything agrees" in said and "Lab 2 holds." in said
    trace = said[said.rindex("orrery trace pod/") :]
    assert re.search(r"(scheduler|apiserver)\.bind .* FENCED", trace), trace


def test_lab_3_cut_the_leader_off(project: Project) -> None:
    said = lab(project, "3-cut-the-leader-off.sh")
    assert '"stopped_leading"' in said and "everything agrees" in said and "Lab 3 holds." in said


@pytest.mark.parametrize("page", ["1-kill-the-leader", "2-pause-the-leader", "3-cut-the-leader-off"])
def test_a_page_names_its_script_and_its_pictures_are_there(page: str) -> None:
    text = (ROOT / "docs" / "labs" / f"{page}.md").read_text()
    assert f"{page}.sh" in text
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert pictures
    for picture in pictures:
        assert (ROOT / "docs" / "labs" / picture).is_file(), picture
