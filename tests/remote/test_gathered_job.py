"""A real job of two nodes on this machine, with --gather: all of it is seen through the first node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from overlaptop.fleet.job_session import JobSelector
from overlaptop.fleet.local_session import LocalSession
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.gather_key import VARIABLE
from overlaptop.jobs.record import list_jobs
from overlaptop.wire.knobs import BUCKET_CAP_MB
from tests.processes import eventually
from tests.remote.watching import Watching
from tests.warm import environment, hold_port, place

RANKS = 2
LATE_S = 0.05
TRAINING = f"""
import time, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    time.sleep({LATE_S} * (1 + dist.get_rank()))  # rank 1 is late
    model(torch.ones(2, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def own_address():
    """This machine's on some network; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


pytestmark = pytest.mark.skipif(not own_address(), reason="no address but the loopback's")


class Nodes:
    """A socket directory and a rank on each node. What a test does, it does on the first one."""

    def __init__(self, warm, folder):
        script = folder / "train.py"
        script.write_text(TRAINING)
        self.folders = [folder / f"node{number}" for number in range(RANKS)]
        self.log = folder / "log"
        self._port = hold_port()
        with self.log.open("wb") as log:
            self._processes = [self._start(warm, rank, script, log.fileno()) for rank in range(RANKS)]

    def _start(self, warm, rank, script, log):
        self.folders[rank].mkdir(mode=0o700)
        words = ["-m", "overlaptop.agent", "--gather", "--control", str(script)]
        variables = {
            **environment(),
            **place(rank, RANKS),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": own_address(),
            "MASTER_PORT": str(self._port.getsockname()[1]),
            "OVERLAPTOP_DIR": str(self.folders[rank]),
            VARIABLE: "2a" * 32,
        }
        return warm.start(words, variables, script.parent, log, log)

    @property
    def run(self):
        return all(each.poll() is None for each in self._processes)

    def record(self, node):
        """The record of the job on this node."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OVERLAPTOP_DIR", str(self.folders[node]))
            return eventually(list_jobs)[0]

    def close(self):
        for each in self._processes:
            each.kill()
            each.wait(60.0)
        self._port.close()


@pytest.fixture(scope="module")
def nodes(warm, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        started = Nodes(warm, tmp_path_factory.mktemp("ot"))
        patch.setenv("OVERLAPTOP_DIR", str(started.folders[0]))
        yield started
        assert started.run, started.log.read_text()
        started.close()


@pytest.fixture
def watching(nodes):
    eventually(lambda: nodes.record(0).is_root)
    with Watching("local://").connect() as made:
        made.until_all_step(RANKS)
        yield made


def overlaptop(*words):
    command = [sys.executable, "-m", "overlaptop", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


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


def test_a_local_dashboard_shows_all_nodes_of_a_gathered_job(nodes):
    with closing(LocalSession(JobSelector())) as session:
        session.watch([1])
        eventually(lambda: any(step.rank == 1 for step in session.tick().fresh))
        eventually(lambda: session.tick().ranks[1].details)
        assert session.job_key == nodes.record(0).job


def test_a_command_on_the_first_node_changes_all_ranks(watching):
    changed = overlaptop("set", f"{BUCKET_CAP_MB}=2")
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout.startswith(f"{BUCKET_CAP_MB} 1 → 2 at step ")
    watching.until(lambda snapshot: {knob.knob.value for knob in snapshot.knobs} == {2})


def test_a_node_whose_hub_stops_is_lost_and_comes_back(nodes, watching):
    hub_pid = nodes.record(1).hub_pid
    os.kill(hub_pid, signal.SIGSTOP)
    try:
        watching.until(lambda snapshot: snapshot.ranks[1].node_lost, 10.0)
        snapshot = watching.until(lambda snapshot: snapshot.nodes[1].hub_state is HubState.LOST)
        assert snapshot.nodes[1].note == "its hub is not connected to the one on local://"
        assert snapshot.nodes[0].hub_state is HubState.LIVE
    finally:
        os.kill(hub_pid, signal.SIGCONT)
    watching.until_all_step(RANKS)
