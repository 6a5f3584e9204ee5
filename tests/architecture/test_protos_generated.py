"""The committed protobuf modules are what protoc makes of the committed .proto files."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def generated_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for pattern in ("*_pb2.py", "*_pb2.pyi")
        for path in sorted((root / "protos").rglob(pattern))
    }


def test_the_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc", "-I", "."]
    done = subprocess.run(
        [*command, f"--python_out={tmp_path}", f"--mypy_out=quiet:{tmp_path}", *sources],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    committed, fresh = generated_files(ROOT), generated_files(tmp_path)
    assert len(fresh) == 2 * len(sources)
    assert sorted(committed) == sorted(fresh)
    stale = [name for name, value in fresh.items() if committed[name] != value]
    assert not stale, f"run `make protos` and commit: {', '.join(stale)}"
