"""Real sshds: a job on two hosts, and hosts that let nobody in or are not there."""

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

import pytest

from overlaptop.fleet.snapshot import HubState
from overlaptop.launch.supervisor import descendants
from tests.processes import eventually
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching, overlaptop
from tests.warm import hold_port

PATIENCE_S = 60.0


def sshd_program() -> str:
    """The path of the sshd; it wants to be called by that."""
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin") or ""


@cache
def why_not() -> str:
    """Why no sshd can be started here; empty: it can."""
    if missing := [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]:
        return f"there is no {', '.join(missing)}"
    if not sshd_program():
        return "there is no sshd"
    with tempfile.TemporaryDirectory() as folder:
        key = make_key(Path(folder) / "key")
        words = [sshd_program(), "-t", "-f", "/dev/null", "-h", str(key)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip()


class Sshd:
    """An OpenSSH server with a host key of its own."""

    def __init__(self, folder: Path, client_key: Path) -> None:
        self.folder, self.jobs_dir, self.home = folder, folder / "jobs", folder / "home"
        self.home.mkdir(parents=True)
        self.jobs_dir.mkdir(mode=0o700)
        self.key = make_key(folder / "host_key")
        with hold_port() as held:
            self.port = held.getsockname()[1]
        configuration = [
            "ListenAddress 127.0.0.1", f"Port {self.port}", f"HostKey {self.key}",
            f"PidFile {folder / 'pid'}", f"AuthorizedKeysFile {client_key}.pub", "UsePAM no",
            "StrictModes no", "PrintMotd no", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password",
            f"SetEnv HOME={self.home} OVERLAPTOP_DIR={self.jobs_dir}",
        ]  # fmt: skip
        (folder / "sshd_config").write_text("\n".join(configuration) + "\n")
        with (folder / "log").open("ab") as log:
            command = [sshd_program(), "-D", "-e", "-f", str(folder / "sshd_config")]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        eventually((folder / "pid").exists, PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        for pid in (self._process.pid, *descendants(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait(PATIENCE_S)


class Lab:
    """Hosts for the ssh at `ssh`, for $OVERLAPTOP_SSH."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ot-lab-"))
        self.ssh = self.folder / "ssh"
        self.ssh.write_text(f'#!/bin/sh\nexec ssh -F {self.folder}/ssh_config "$@"\n')
        self.ssh.chmod(0o755)
        self.key = make_key(self.folder / "key")
        self.servers: dict[str, Sshd] = {}

    def add_server(self, name: str) -> Sshd:
        self.servers[name] = server = Sshd(self.folder / name, self.key)
        known = self.folder / f"known-{name}"
        known.write_text(f"{name} {server.key.with_name('host_key.pub').read_text()}")
        lines = (
            f"Host {name}", "HostName 127.0.0.1", f"Port {server.port}", f"HostKeyAlias {name}",
            f"User {getpass.getuser()}", f"IdentityFile {self.key}", f"UserKnownHostsFile {known}",
            "IdentitiesOnly yes", "IdentityAgent none", "StrictHostKeyChecking yes",
            "GlobalKnownHostsFile none",
        )  # fmt: skip
        with (self.folder / "ssh_config").open("a") as config:
            config.write("\n".join(lines) + "\n")
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)  # a hub may still be ending in it


def make_key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "overlaptop", "-f", str(path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=PATIENCE_S)
    return path


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be")

NOISE = """
echo "Welcome to the cluster"
echo "quota exceeded" >&2
printf "\\033[31m\\r\\n\\000"
"""


@pytest.fixture
def lab(monkeypatch):
    with Lab() as made:
        monkeypatch.setenv("OVERLAPTOP_SSH", str(made.ssh))
        yield made


def test_one_job_on_two_hosts_is_changed_lost_and_had_again(lab, tmp_path, warm):
    left, right = lab.add_server("left"), lab.add_server("right")
    nodes = [left.jobs_dir, right.jobs_dir]
    (left.home / ".bashrc").write_text(NOISE)
    lab.add_server("refuses").kill()
    hosts = "left", "right", "refuses"
    with NodeJob(warm, tmp_path / "job", nodes), Watching(*hosts).connect() as watching:
        assert "Connection refused" in "\n".join(watching.reported)
        watching.until_all_step(2)
        assert len(watching.session.jobs) == 1
        for rank, node in enumerate(watching.snapshot.nodes[:2]):
            assert (node.name, node.ranks) == (("left", "right")[rank], (rank,))
            assert abs(node.offset_ns) <= node.residual_ns, "their clocks are this machine's"
        changed = overlaptop("set", "bucket_cap_mb=2", "--host", "left", "--host", "right")
        assert changed.stdout.startswith("bucket_cap_mb 1 → 2 at step "), changed.stderr
        right.signal(signal.SIGSTOP)
        watching.until(lambda _: watching.node("right").hub_state is HubState.LOST)
        assert "silent" in watching.node("right").note
        assert [view.node_lost for view in watching.snapshot.ranks] == [False, True]
        last = watching.of(0)[-1]
        watching.until(lambda _: watching.of(0)[-1] >= last + 10)
        right.signal(signal.SIGCONT)
        watching.session.retry()
        watching.until_all_step(2, 10)
        for rank in (0, 1):
            steps = watching.of(rank)
            assert steps == list(range(steps[0], steps[-1] + 1)), f"of rank {rank} some are missing"
