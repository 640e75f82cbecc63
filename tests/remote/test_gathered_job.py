"""A real job of two nodes on this machine, with --gather: all of it is seen through the first node."""

import os
import signal
import socket
from contextlib import closing

import pytest

from overlaptop.fleet.hosts_session import LocalSession
from overlaptop.fleet.job_session import JobSelector
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.gather_key import VARIABLE
from overlaptop.wire.knobs import BUCKET_CAP_MB
from tests.processes import eventually
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching, overlaptop

RANKS = 2


def own_address():
    """This machine's on some network; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


pytestmark = pytest.mark.skipif(not own_address(), reason="no address but the loopback's")


@pytest.fixture(scope="module")
def job(warm, tmp_path_factory):
    """What a test does, it does on the first node."""
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
