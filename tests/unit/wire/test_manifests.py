"""Manifests: many documents, one verdict each, errors with line, document and path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.model.kinds import KINDS
from services.wire.manifests import Manifest, ManifestError, read_manifests

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: main
    image: nginx
    resources:
      limits: {cpu: 0.5, nvidia.com/gpu: 1}
"""
NODE = '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}'

HINT = "put it in quotes (a bare yes, no, on, off, true or false is a boolean in YAML)"


def read(text: str) -> list[str]:
    """What was found, one line each: `kind name line document`, or the error."""
    return [
        f"{found.kind.name} {found.name} {found.line} {found.document}" if isinstance(found, Manifest) else str(found)
        for found in read_manifests(text, "web.yaml")
    ]


def test_documents_are_read_in_order_with_their_lines() -> None:
    text = f"# two pods and a node\n---\n{POD}---\n# only a comment\n---\n{NODE}\n--- # last\n{POD}"
    assert read(text) == ["Pod web 3 1", "Node node-a 16 2", "Pod web 18 3"]


@pytest.mark.parametrize("text", ["", "\n", "---\n", "# nothing\n---\n---\n", "%YAML 1.1\n---\n", "null", "---\n~\n"])
def test_nothing_is_no_error(text: str) -> None:
    assert read(text) == []


def test_a_bad_document_does_not_lose_the_others() -> None:
    text = f"{POD}---\na: [\n---\n{NODE}\n---\nspec: 5\n---\n{POD}"
    found = read(text)
    assert [line.split(" ")[0] for line in found] == ["Pod", "web.yaml:13:", "Node", "web.yaml:16:", "Pod"]
    assert found[1].startswith("web.yaml:13: document 2: not readable as YAML: ")
    assert found[3] == "web.yaml:16: document 4: apiVersion: is missing\nweb.yaml:16: document 4: kind: is missing"


def test_each_problem_has_its_own_line_and_path() -> None:
    text = POD.replace("image: nginx", "imgae: nginx\n    args: [a, 5]").replace(
        "name: web", "name: web\n  labels: {a: yes}"
    )
    [error] = read_manifests(text, "web.yaml")
    assert isinstance(error, ManifestError)
    assert (error.name, error.document, error.line) == ("Pod web", 1, 5)
    assert str(error).splitlines() == [
        f"web.yaml:5: document 1: metadata.labels[a]: wanted a string, found the boolean true; {HINT}",
        'web.yaml:9: document 1: spec.containers[0].imgae: unknown field; did you mean "image"?',
        "web.yaml:10: document 1: spec.containers[0].args[1]: wanted a string, found the number 5; put it in quotes",
    ]


def test_a_list_is_its_items_and_their_paths_begin_with_it() -> None:
    text = f"""\
apiVersion: v1
kind: List
metadata: {{resourceVersion: ""}}
items:
- {NODE}
- apiVersion: v1
  kind: Pod
  metadata: {{name: b, nam: c}}
- kind: List
  apiVersion: v1
  items: [{NODE}]
- 5
"""
    assert read(text) == [
        "Node node-a 5 1",
        'web.yaml:8: document 1: items[1].metadata.nam: unknown field; did you mean "name"?',
        "Node node-a 11 1",
        "web.yaml:12: document 1: items[3]: wanted an object with apiVersion and kind, found the number 5",
    ]


def test_the_items_of_a_typed_list_need_not_say_their_kind() -> None:
    text = (
        '{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}'
    )
    found = read_manifests(text, "pods.json")
    assert [item.name for item in found] == ["a", "b"]
    assert all(isinstance(item, Manifest) and item.message.kind == "Pod" for item in found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: Pod\nmetadata: {name: a}", "1: document 1: apiVersion: is missing"),
        ("apiVersion: v1\nmetadata: {name: a}", "1: document 1: kind: is missing"),
        ("apiVersion: 1\nkind: Pod", "1: document 1: apiVersion: wanted a string, found the number 1"),
        ("apiVersion: v1\nkind: [Pod]", "2: document 1: kind: wanted a string, found a list"),
        ("apiVersion: v1\nkind: Pod", "1: document 1: metadata.name: is missing"),
        ("apiVersion: v1\nkind: Pod\nmetadata:\n  labels: {}", "3: document 1: metadata.name: is missing"),
        ("apiVersion: v1\nkind: Pod\nmetadata:\n  name: ''", "4: document 1: metadata.name: is missing"),
        ("apiVersion: v1\nkind: Pod\nmetadata: []", "3: document 1: metadata: wanted an object, found a list"),
        ("apiVersion: apps/v1\nkind: Pod", "1: document 1: apiVersion: Pod is served as v1, not as 'apps/v1'"),
        ("- a", "1: document 1: wanted an object with apiVersion and kind, found a list"),
        ("apiVersion: v1\nkind: List\nitems: {}", "3: document 1: items: wanted a list, found an object"),
        ("apiVersion: v1\nkind: List\nitem: []",
         "3: document 1: item: unknown field; a list has apiVersion, kind, metadata and items"),
        ("a: 1\na: 2", "2: document 1: a: given twice; first in line 1"),
        ("\ud800", "1: document 1: not valid Unicode"),
        ('{"a": 1,', "1: document 1: not readable as JSON: wanted a key, found the end of the text"),
        ("apiVersion: orrery.dev/v1\nkind: NodeAllocation\nmetadata: {name: a}",
         "2: document 1: kind: NodeAllocation is read-only: the API server writes it"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_said(text: str, says: str) -> None:
    [error] = read(text)
    assert error == f"web.yaml:{says}"


def test_an_unknown_kind_is_told_the_known_ones() -> None:
    [error] = read("apiVersion: v1\nkind: pods\nmetadata: {name: a}")
    assert "web.yaml:2: document 1: kind: unknown kind 'pods' in 'v1'; did you mean Pod? (known: " in error
    for kind in KINDS:
        assert (f"{kind.name} ({kind.api_version})" in error) is not kind.read_only


def test_a_generated_name_will_do() -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata: {generateName: web-}"
    assert read(text) == ["Pod web- 1 1"]


def test_json_values_in_a_file_and_yaml_in_braces_are_both_read() -> None:
    assert read(NODE + "\n" + NODE) == ["Node node-a 1 1", "Node node-a 2 2"]
    assert read("\ufeff" + NODE) == ["Node node-a 1 1"]
    assert read('{"apiVersion": v1, kind: Node, metadata: {name: a}}') == ["Node a 1 1"]


def test_a_document_of_megabytes_is_read() -> None:
    entries = "".join(f"    key-{number}: {'x' * 100}\n" for number in range(12_000))
    text = f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: big\n  annotations:\n{entries}  nmae: x\n"
    [error] = read_manifests(text, "big.yaml")
    assert len(text) > 2**20
    assert str(error) == 'big.yaml:12006: document 1: metadata.nmae: unknown field; did you mean "name"?'


SNIPPETS = st.sampled_from(
    [
        "---\n", "\n", "  ", "- ", ": ", "{", "}", "[", "]", ",", '"', "'", "&a ", "*a", "<<: ", "!!str ", "!x ", "| \n",
        "\t", "#", "apiVersion: v1\n", "kind: List\n", "items:\n", "metadata: ", "name", "null", "yes", "1e999", "\x00",
        "\ud800", "\x85", "kind: Pod\n", "...\n", "%YAML 9\n", "? ", "\\u12", "\ufeff", "9" * 400, "\r",
    ]
)  # fmt: skip


@st.composite
def broken(draw: st.DrawFn) -> str:
    """A good text with a few pieces cut out and a few put in."""
    text = draw(st.sampled_from((POD, NODE, f"{POD}---\n{NODE}", f"apiVersion: v1\nkind: List\nitems:\n- {NODE}\n")))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 6))
        text = text[:at] + draw(st.one_of(st.just(""), SNIPPETS, st.text(max_size=3))) + text[at + cut :]
    return text


@given(st.one_of(st.text(), broken(), st.lists(SNIPPETS, max_size=12).map("".join)))
def test_any_text_is_manifests_and_errors(text: str) -> None:
    for found in read_manifests(text, "fuzz"):
        if isinstance(found, Manifest):
            assert found.message.kind == found.kind.name
            assert found.name
        else:
            assert str(found).startswith(f"fuzz:{found.line}: document {found.document}: ")
            assert (
                1 <= found.line <= text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + 2
            )
