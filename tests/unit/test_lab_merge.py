"""The three-way merge of `orrery apply`."""

from typing import Any

import pytest

from services.lab.merge import three_way


@pytest.mark.parametrize(
    ("last", "given", "live", "wanted"),
    [
        pytest.param({"a": 1}, {"a": 2}, {"a": 1, "d": 9}, {"a": 2, "d": 9}, id="set, and a default stays"),
        pytest.param({"a": 1, "b": 1}, {"a": 1}, {"a": 1, "b": 1}, {"a": 1}, id="what was applied and is no more goes"),
        pytest.param({}, {"a": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, id="what others wrote stays"),
        pytest.param(
            {"m": {"x": "1", "y": "1"}},
            {"m": {"x": "2"}},
            {"m": {"x": "1", "y": "1", "z": "1"}},
            {"m": {"x": "2", "z": "1"}},
            id="maps merge in depth",
        ),
        pytest.param({"l": [1, 2]}, {"l": [3]}, {"l": [1, 2]}, {"l": [3]}, id="a plain list is replaced"),
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}, {"name": "gone"}]},
            {"containers": [{"name": "a", "image": "2"}, {"name": "new"}]},
            {"containers": [{"name": "a", "image": "1", "d": 1}, {"name": "gone"}, {"name": "injected"}]},
            {"containers": [{"name": "a", "image": "2", "d": 1}, {"name": "injected"}, {"name": "new"}]},
            id="containers merge by name",
        ),
        pytest.param(
            {},
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "a"}]},
            id="tolerations have no key",
        ),
        pytest.param(
            {},
            {"ports": [{"containerPort": 80, "name": "web"}]},
            {"ports": [{"containerPort": 80, "protocol": "TCP"}]},
            {"ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]},
            id="ports merge by number",
        ),
        pytest.param({}, {"a": {"b": 1}}, {"a": "text"}, {"a": {"b": 1}}, id="another type replaces"),
    ],
)
def test_what_should_be_there(last: Any, given: Any, live: Any, wanted: Any) -> None:
    assert three_way(last, given, live) == wanted


def test_applying_what_is_there_changes_nothing() -> None:
    live = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "1"}], "restartPolicy": "Always"}}
    given = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "1"}]}}
    assert three_way(given, given, live) == live
