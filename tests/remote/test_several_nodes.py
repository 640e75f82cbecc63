"""Real jobs of two nodes: seen through the first one (--gather), and over real sshds."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Self

import pytest

from overlaptop.fleet.hosts_session import LocalSession
from overlaptop.fleet.job_session import JobSelector
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.gather_key import VARIABLE
from overlaptop.jobs.record import JobRecord, list_jobs
from overlaptop.launch.supervisor import descendants
from overlaptop.wire.knobs import BUCKET_CAP_MB
from tests.processes import eventually
from tests.remote.watching import Watching, overlaptop
from tests.warm import Warm, WarmRanks, hold_port

PATIENCE_S = 60.0
TRAINING = """
import os, time, torch, torch.distributed as dist
from torch import nn

model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))  # 1 MiB of gradients each
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    time.sleep(0.05 * (1 + int(os.environ.get("RANK", "0"))))  # rank 1 is late
    model(torch.ones(2, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class NodeJob(WarmRanks):
    """Its ranks are forked from the process that has torch."""

    def __init__(
        self, warm: Warm, folder: Path, nodes: Sequence[Path], *options: str, **variables: str
    ) -> None:
        """``nodes``: their socket directories. ``options``: of the agent. ``variables``: of each rank."""
        folder.mkdir(exist_ok=True)
        self.nodes, self.log = nodes, folder / "log"
        script = folder / "train.py"
        script.write_text(TRAINING)
        words = ["-m", "overlaptop.agent", "--control", *options, str(script)]
        alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if len(nodes) > 1 else {}
        own = [
            {"OVERLAPTOP_DIR": str(node), "CUDA_VISIBLE_DEVICES": ""} | alone | variables for node in nodes
        ]
        with self.log.open("a") as log:
            super().__init__(warm, words, len(nodes) if len(nodes) > 1 else 0, folder, log, log, own)

    def record(self, node: int = 0) -> JobRecord:
        """Of the newest job on this node."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OVERLAPTOP_DIR", str(self.nodes[node]))
            return eventually(list_jobs)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it at once. Its hubs see that."""
        ran = self.poll() is None and not self.failed
        self.kill()
        self.wait(PATIENCE_S)
        assert ran, self.log.read_text()


RANKS = 2


def own_address():
    """This machine's on some network; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def job(warm, tmp_path_factory):
    """What a test does, it does on the first node."""
    if not own_address():
        pytest.skip("no address but the loopback's")
    folder = tmp_path_factory.mktemp("ot")
    nodes = [folder / f"node{number}" for number in range(RANKS)]
    for node in nodes:
        node.mkdir(mode=0o700)
    variables = {"MASTER_ADDR": own_address(), VARIABLE: "2a" * 32}
    with (
        pytest.MonkeyPatch.context() as patch,
        NodeJob(warm, folder, nodes, "--gather", **variables) as started,
    ):
        patch.setenv("OVERLAPTOP_DIR", str(nodes[0]))
        yield started


@pytest.fixture
def watching(job):
    eventually(lambda: job.record(0).is_root)
    with Watching("local://").connect() as made:
        made.until_all_step(RANKS)
        yield made


def test_all_nodes_are_seen_and_waits_between_them_attributed(watching):
    watching.session.watch([0, 1])
    # On a busy machine the other rank may be late now and then.
    snapshot = watching.until(lambda now: [step.main_late_rank for step in now.step_waits].count(1) >= 3)
    first, second = snapshot.ranks
    assert first.node != second.node
    assert [(node.hub_state, node.ranks) for node in snapshot.nodes] == [
        (HubState.LIVE, (0,)),
        (HubState.LIVE, (1,)),
    ]
    # Their clocks are compared to the root's, not to the reader's.
    root, node = snapshot.nodes
    assert (root.offset_ns, root.residual_ns) == (0, 0)
    assert abs(node.offset_ns) <= node.residual_ns + 1


def test_a_local_dashboard_shows_all_nodes_of_a_gathered_job(job):
    with closing(LocalSession(JobSelector())) as session:
        session.watch([1])
        eventually(lambda: any(step.rank == 1 for step in session.tick().fresh))
        eventually(lambda: session.tick().ranks[1].details)
        assert session.job_key == job.record(0).job


def test_a_command_on_the_first_node_changes_all_ranks(watching):
    changed = overlaptop("set", f"{BUCKET_CAP_MB}=2")
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout.startswith(f"{BUCKET_CAP_MB} 1 → 2 at step ")
    watching.until(lambda snapshot: {knob.knob.value for knob in snapshot.knobs} == {2})


def test_a_node_whose_hub_stops_is_lost_and_comes_back(job, watching):
    hub_pid = job.record(1).hub_pid
    os.kill(hub_pid, signal.SIGSTOP)
    try:
        watching.until(lambda snapshot: snapshot.ranks[1].node_lost, 10.0)
        snapshot = watching.until(lambda snapshot: snapshot.nodes[1].hub_state is HubState.LOST)
        assert snapshot.nodes[1].note == "its hub is not connected to the one on local://"
        assert snapshot.nodes[0].hub_state is HubState.LIVE
    finally:
        os.kill(hub_pid, signal.SIGCONT)
    watching.until_all_step(RANKS)


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
