"""The openb trace's CSV files: rows as they are, and every fault with its file, line and column."""

import re
from pathlib import Path

import pytest

from services.lab.openb import TraceError, TraceNode, TracePod, read_nodes, read_pods
from tests.shared_data import shared_data

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return path


def test_nodes_are_read_with_and_without_gpus(tmp_path: Path) -> None:
    path = written(tmp_path, NODES + "n-0,64000,262144,2,P100\n\nn-1,32000,1024,0,\n")
    assert read_nodes(path) == [TraceNode("n-0", 64000, 262144, 2, "P100"), TraceNode("n-1", 32000, 1024, 0, "")]


def test_pods_ask_for_shares_for_whole_devices_and_for_models(tmp_path: Path) -> None:
    path = written(tmp_path, PODS + "a,1,2,1,470,,BE\nb,1,2,8,1000,V100M16|V100M32,LS\nc,1,2,0,0,,LS\n")
    assert read_pods(path) == [
        TracePod("a", 1, 2, 1, 470, ()),
        TracePod("b", 1, 2, 8, 1000, ("V100M16", "V100M32")),
        TracePod("c", 1, 2, 0, 0, ()),
    ]


def test_a_variant_without_the_columns_that_a_replay_does_not_need_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,2,1,1000\n")
    assert read_pods(path) == [TracePod("a", 1, 2, 1, 1000, ())]


def test_columns_may_come_in_another_order(tmp_path: Path) -> None:
    path = written(tmp_path, "gpu_milli,num_gpu,memory_mib,cpu_milli,name\n0,0,2,1,a\n")
    assert read_pods(path) == [TracePod("a", 1, 2, 0, 0, ())]


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        (NODES + "n-0,x,1,0,\n", 2, "cpu_milli", "wanted a whole number, found 'x'"),
        (NODES + "n-0,-1,1,0,\n", 2, "cpu_milli", "wanted a whole number"),
        (NODES + "n-0,1.5,1,0,\n", 2, "cpu_milli", "wanted a whole number"),
        (NODES + "n-0,0,1,0,\n", 2, "cpu_milli", "not between 1 and"),
        (NODES + "n-0,1,1,0,\nn-1,1,,0,\n", 3, "memory_mib", "found ''"),
        (NODES + "n-0,1,1,17,P100\n", 2, "gpu", "17 is not between 0 and 16"),
        (NODES + "n-0,1,1,2,\n", 2, "model", "names no model"),
        (NODES + "n 0,1,1,0,\n", 2, "sn", "no name"),
        (NODES + "n-0,1,1,0,\nn-0,1,1,0,\n", 3, "sn", "stands already in line 2"),
        (NODES + "n-0,1,1\n", 2, "gpu", "3 values for 5 columns"),
        (NODES + "n-0,1,1,0,,9\n", 2, "model", "6 values for 5 columns"),
        ("sn,cpu_milli,gpu,model\n", 1, "memory_mib", "the header lacks it"),
        ("", 1, "sn", "the file is empty"),
    ],
)
def test_a_wrong_node_row_is_named_by_file_line_and_column(
    tmp_path: Path, text: str, line: int, column: str, says: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as raised:
        read_nodes(path)
    assert str(raised.value).startswith(f"{path}, line {line}, column {column}: ")
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("a,1,2,0,500,,", "gpu_milli"),
        ("a,1,2,1,0,,", "gpu_milli"),
        ("a,1,2,1,1001,,", "gpu_milli"),
        ("a,1,2,z,1,,", "num_gpu"),
    ],
)
def test_a_wish_for_devices_that_makes_no_sense_is_refused(tmp_path: Path, row: str, column: str) -> None:
    with pytest.raises(TraceError, match=re.escape(f"line 2, column {column}: ")):
        read_pods(written(tmp_path, PODS + row + "\n"))


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_nodes(tmp_path / "none.csv")


def test_a_file_with_a_header_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no rows"):
        read_pods(written(tmp_path, PODS))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"sn,\xff\n")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_nodes(path)


def test_a_model_that_nobody_knows_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    path = written(tmp_path, NODES + "n-0,1,1,0,\nn-1,1,1,2,Z9\n")
    with pytest.raises(TraceError, match=r"line 3, column model: 'Z9' is no GPU model that is known: P100, T4"):
        read_nodes(path, models={"T4", "P100"})
    assert len(read_nodes(path)) == 2


def test_the_published_trace_is_read_whole() -> None:
    nodes = read_nodes(shared_data("openb/openb_node_list_gpu_node.csv"))
    pods = read_pods(shared_data("openb/openb_pod_list_default.csv"))
    assert (len(nodes), sum(node.gpus for node in nodes)) == (1213, 6212)
    assert (len(pods), sum(0 < pod.gpu_milli < 1000 for pod in pods)) == (8152, 3078)
