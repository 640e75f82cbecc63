"""One job on two hosts, each behind a real sshd, and connections that are cut, frozen and had again."""

import signal

import pytest

from overlaptop.fleet.snapshot import HubState
from overlaptop.wire import commands
from overlaptop.wire.commands import CHANGED
from overlaptop.wire.knobs import BUCKET_CAP_MB
from tests.remote.hosts import NODES, why_not
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching, overlaptop

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be")

A, B = NODES
CANNOT = f"{B} cannot be reached: a change needs all ranks"


@pytest.fixture(scope="module")
def job(lab, warm):
    """A rank on each host."""
    with NodeJob(warm, lab.folder / "job", [lab.servers[name].jobs_dir for name in NODES]) as started:
        yield started


@pytest.fixture
def watching(lab, job):
    """Who sees all ranks step."""
    with Watching(*NODES).connect() as made:
        made.until_all_step(2)
        yield made


def assert_complete(watching):
    """Each step that a rank has made since the first one came once, in order."""
    for view in watching.snapshot.ranks:
        steps = watching.of(view.rank)
        assert steps == list(range(steps[0], steps[-1] + 1)), f"rank {view.rank}"


def bucket(watching):
    """The knob of the bucket size, once all ranks agree on its value."""

    def agreed(snapshot):
        return next(
            (each for each in snapshot.knobs if each.knob.name == BUCKET_CAP_MB and not each.differs), None
        )

    found = agreed(watching.until(agreed))
    assert found is not None
    return found


def test_ranks_of_both_hosts_are_one_job(watching):
    assert len(watching.session.jobs) == 1
    snapshot = watching.snapshot
    assert [(view.rank, view.node, view.node_lost) for view in snapshot.ranks] == [
        (0, A, False),
        (1, B, False),
    ]
    assert [(node.name, node.hub_state, node.ranks) for node in snapshot.nodes] == [
        (A, HubState.LIVE, (0,)),
        (B, HubState.LIVE, (1,)),
    ]
    assert snapshot.totals.step is not None
    for node in snapshot.nodes:
        # Their clocks are this machine's: what is found is all error.
        assert node.offset_ns is not None
        assert node.residual_ns is not None
        assert abs(node.offset_ns) <= node.residual_ns
    shown = overlaptop("--once", A, B)
    assert shown.returncode == 0, shown.stderr
    assert "2 ranks" in shown.stdout
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert [line[:3] for line in lines if line and line[0] in NODES] == [[A, "●", "live"], [B, "●", "live"]]


def test_a_bucket_size_changes_on_all_ranks_at_one_step(watching):
    old = bucket(watching).knob.value
    assert old is not None
    assert bucket(watching).refusal == ""
    changed = overlaptop("set", f"{BUCKET_CAP_MB}={old + 1}", "--host", A, "--host", B)
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout.startswith(f"{BUCKET_CAP_MB} {old} → {old + 1} at step ")
    watching.until(lambda _: bucket(watching).knob.value == old + 1)
    view = watching.until(lambda snapshot: snapshot.commands[-1].state == CHANGED).commands[-1]
    assert [rank.rank for rank in view.ranks] == [0, 1]
    assert {rank.text for rank in view.ranks} == {changed.stdout.strip()}


def test_frozen_connection_is_noticed_and_returns_with_all_steps(lab, watching):
    knob = bucket(watching).knob
    before = watching.of(1)[-1]
    lab.servers[B].signal(signal.SIGSTOP)
    watching.until(lambda _: watching.node(B).hub_state is HubState.LOST)
    assert "silent" in watching.node(B).note
    assert (watching.rank(0).node_lost, watching.rank(1).node_lost) == (False, True)
    assert watching.rank(1).last is not None
    assert watching.rank(1).last.step >= before  # the last picture stays
    assert watching.snapshot.hub_state is HubState.LIVE
    here = watching.of(0)[-1]
    watching.until(lambda _: watching.of(0)[-1] >= here + 10)

    assert watching.session.send(commands.make_setting(knob, 9)) == CANNOT
    assert bucket(watching).refusal == CANNOT

    lab.servers[B].signal(signal.SIGCONT)
    watching.session.retry()
    watching.until_all_step(2, 10)
    assert watching.of(1)[-1] > here
    assert_complete(watching)
    assert (bucket(watching).knob, bucket(watching).refusal) == (knob, "")
