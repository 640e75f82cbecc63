"""Real sshds: a job on two hosts, one of which is lost and comes back, and a host that is not there."""

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from overlaptop.fleet.snapshot import HubState
from overlaptop.launch.supervisor import descendants
from tests.processes import eventually
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching, overlaptop
from tests.warm import hold_port

# It wants to be called by its path.
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin") or ""
NOISE = """
echo "Welcome to the cluster"
echo "quota exceeded" >&2
printf "\\033[31m\\r\\n\\000"
"""


@cache
def why_not() -> str:
    """Why no sshd can be started here; empty: it can."""
    if not SSHD or shutil.which("ssh-keygen") is None:
        return "there is no sshd"
    with tempfile.TemporaryDirectory() as folder:
        key = make_key(Path(folder) / "key")
        words = [SSHD, "-t", "-f", "/dev/null", "-h", str(key)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip()


def make_key(path: Path) -> Path:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True, timeout=60)
    return path


class Hosts:
    """OpenSSH servers, and the ssh that knows their names, for $OVERLAPTOP_SSH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ssh, self.key = folder, folder / "ssh", make_key(folder / "key")
        self.ssh.write_text(f'#!/bin/sh\nexec ssh -F {folder}/ssh_config "$@"\n')
        self.ssh.chmod(0o755)
        self.servers: dict[str, subprocess.Popen[bytes]] = {}

    def name(self, host: str) -> int:
        """Let ssh know this host; the port at which it looks for it."""
        with hold_port() as held:
            port = held.getsockname()[1]
        lines = (
            f"Host {host}", "HostName 127.0.0.1", f"Port {port}", f"User {getpass.getuser()}",
            f"IdentityFile {self.key}", "IdentitiesOnly yes", "IdentityAgent none",
            f"UserKnownHostsFile {self.folder}/known", "GlobalKnownHostsFile none", "HashKnownHosts no",
        )  # fmt: skip
        with (self.folder / "ssh_config").open("a") as config:
            config.write("\n".join(lines) + "\n")
        return port

    def add(self, host: str) -> Path:
        """Start the sshd of this host; the folder of its jobs."""
        folder = self.folder / host
        jobs = folder / "jobs"
        jobs.mkdir(parents=True)
        jobs.chmod(0o700)
        port, key = self.name(host), make_key(folder / "host_key")
        with (self.folder / "known").open("a") as known:
            known.write(f"[127.0.0.1]:{port} {key.with_name('host_key.pub').read_text()}")
        configuration = (
            f"ListenAddress 127.0.0.1:{port}", f"HostKey {key}", f"PidFile {folder}/pid", "UsePAM no",
            f"AuthorizedKeysFile {self.key}.pub", "StrictModes no", "PrintMotd no",
            f"SetEnv HOME={folder} OVERLAPTOP_DIR={jobs}",
        )  # fmt: skip
        (folder / "sshd_config").write_text("\n".join(configuration) + "\n")
        words = [SSHD, "-D", "-f", str(folder / "sshd_config")]
        self.servers[host] = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        eventually((folder / "pid").exists)
        return jobs

    def signal(self, host: str, number: signal.Signals) -> None:
        server = self.servers[host]
        for pid in (server.pid, *descendants(server.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.fixture
def hosts(monkeypatch, tmp_path_factory):
    made = Hosts(tmp_path_factory.mktemp("ot"))  # short, as a socket's path has to be
    monkeypatch.setenv("OVERLAPTOP_SSH", str(made.ssh))
    yield made
    for host, server in made.servers.items():
        made.signal(host, signal.SIGKILL)
        server.wait(60)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be")
def test_one_job_on_two_hosts_is_changed_lost_and_had_again(hosts, tmp_path, warm):
    nodes = [hosts.add("left"), hosts.add("right")]
    (hosts.folder / "left" / ".bashrc").write_text(NOISE)
    hosts.name("refuses")
    with NodeJob(warm, tmp_path / "job", nodes), Watching("left", "right", "refuses").connect() as watching:
        assert "Connection refused" in "\n".join(watching.reported)
        watching.until_all_step(2)
        assert len(watching.session.jobs) == 1
        for rank, node in enumerate(watching.snapshot.nodes[:2]):
            assert (node.name, node.ranks) == (("left", "right")[rank], (rank,))
            assert abs(node.offset_ns) <= node.residual_ns, "their clocks are this machine's"
        changed = overlaptop("set", "bucket_cap_mb=2", "--host", "left", "--host", "right")
        assert changed.stdout.startswith("bucket_cap_mb 1 → 2 at step "), changed.stderr
        hosts.signal("right", signal.SIGSTOP)
        watching.until(lambda _: watching.node("right").hub_state is HubState.LOST)
        assert "silent" in watching.node("right").note
        assert [view.node_lost for view in watching.snapshot.ranks] == [False, True]
        last = watching.of(0)[-1]
        watching.until(lambda _: watching.of(0)[-1] >= last + 10)
        hosts.signal("right", signal.SIGCONT)
        watching.session.retry()
        watching.until_all_step(2, 10)
        for rank in (0, 1):
            steps = watching.of(rank)
            assert steps == list(range(steps[0], steps[-1] + 1)), f"of rank {rank} some are missing"
