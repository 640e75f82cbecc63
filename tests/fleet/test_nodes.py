"""A job on several nodes, each with a hub of its own."""

import pytest
from msgspec import structs

from overlaptop.fleet.nodes import out_of_reach
from overlaptop.fleet.snapshot import HubState, NodeView, RankView
from overlaptop.wire import commands
from overlaptop.wire.knobs import KnobFacts
from overlaptop.wire.messages import Notice

from .builders import BUCKET_CAP_MB, T0, Clock, info, report, sample, step, welcome
from .hub import PlayedFleet


class Nodes:
    """A job of two ranks on each of two nodes."""

    def __init__(self):
        self.clock = Clock()
        self.fleet = PlayedFleet(self.clock)
        self.names = ["gpu-a", "gpu-b"]
        self.connections = [(HubState.LIVE, T0, "")] * 2
        for node, name in enumerate(self.names):
            self.fleet.set_hub_state(HubState.LIVE, node=name)
            ranks = (info(rank, host=name, control_allowed=True) for rank in (2 * node, 2 * node + 1))
            self.send(node, welcome(world_size=4), *ranks)

    def send(self, node, *messages):
        for message in messages:
            self.fleet.apply(message, self.names[node])

    def lose(self, node, state=HubState.LOST, note="the line broke"):
        self.connections[node] = (state, self.clock(), note)

    def seen(self, waiting=""):
        both = zip(self.names, self.connections, strict=True)
        return self.fleet.snapshot([NodeView(name, *known) for name, known in both], waiting)


@pytest.fixture
def nodes():
    return Nodes()


def test_unseen_ranks_are_named():
    views = [RankView(rank, None if rank != 1 else info(rank)) for rank in range(4)]
    why = "ranks 0, 2-3 have not been seen (is their host watched?): a change needs all ranks"
    assert out_of_reach("change", (), views) == why
    assert out_of_reach("change", (), views[:2]).startswith("rank 0 has not been seen")


@pytest.mark.parametrize(
    ("states", "together"),
    [
        ("live lost", "live"), ("stale lost", "stale"), ("ended lost", "lost"), ("ended ended", "ended"),
        ("waiting lost", "waiting"), ("ended waiting", "waiting"),
    ],
)  # fmt: skip
def test_the_connection_to_the_job_is_the_best_of_its_nodes(nodes, states, together):
    for node, state in enumerate(states.split()):
        nodes.lose(node, HubState(state))
    assert nodes.seen().hub_state is HubState(together)


def test_a_host_that_is_there_by_two_names_doubles_nothing(nodes):
    for rank in (0, 1):
        nodes.send(1, info(rank, host="gpu-a"))
    for node in (0, 1):
        nodes.send(node, step(0, 1), step(1, 1), sample(0, 1.0), Notice(0, T0, "info", "hello"))
    seen = nodes.seen()
    assert [view.rank for view in seen.ranks] == [0, 1, 2, 3]
    assert (len(seen.fresh), len(seen.fresh_samples), len(seen.notices)) == (2, 1, 1)
    nodes.lose(0)
    nodes.seen()
    nodes.send(1, step(0, 2))
    seen = nodes.seen()
    assert (seen.ranks[0].node, [fresh.step for fresh in seen.fresh]) == ("gpu-b", [2])
    nodes.connections[0] = (HubState.LIVE, T0, "")
    nodes.send(0, step(0, 2))  # as its history has it, once the line is back
    assert nodes.seen().fresh == ()


# What can be changed


def test_a_knob_is_refused_while_not_every_rank_can_be_reached(nodes):
    for rank in range(4):
        nodes.send(rank // 2, KnobFacts(rank, (BUCKET_CAP_MB,)))
    (known,) = nodes.seen().knobs
    assert (known.knob, known.differs, known.refusal) == (BUCKET_CAP_MB, False, "")
    nodes.lose(1, HubState.STALE)
    assert nodes.seen().knobs[0].refusal == "gpu-b cannot be reached: a change needs all ranks"
    nodes.connections[1] = (HubState.LIVE, T0, "")
    nodes.send(1, KnobFacts(3, (structs.replace(BUCKET_CAP_MB, value=50, value_text="50"),)))
    assert (nodes.seen().knobs[0].refusal, nodes.seen().knobs[0].differs) == ("", True)


# Commands


def test_outcome_on_a_lost_node_is_unknown_until_it_reports(nodes):
    command = structs.replace(commands.make_setting(BUCKET_CAP_MB, 50), at_ns=nodes.clock())
    for node in (0, 1):
        ranks = (2 * node, 2 * node + 1)
        nodes.send(node, command, *(report(rank, command, "agreed", 40) for rank in ranks))
    nodes.lose(1)
    nodes.send(0, *(report(rank, command, "changed", 40) for rank in (0, 1)))
    nodes.clock.pass_s(10)
    (view,) = nodes.seen().commands
    assert (view.state, view.done) == ("agreed", False)  # the line may come back
    nodes.clock.pass_s(6)
    (view,) = nodes.seen().commands
    assert (view.state, view.done) == ("unknown", True)
    assert view.reason == "rank 2 is on gpu-b, which cannot be reached"
    nodes.connections[1] = (HubState.LIVE, nodes.clock(), "")
    nodes.send(1, *(report(rank, command, "changed", 40) for rank in (2, 3)))
    (view,) = nodes.seen().commands
    assert (view.state, view.done) == ("changed", True)
