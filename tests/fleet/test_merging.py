"""Parts of one job, each from a node's own JobState, taken together."""

import pytest
from msgspec import structs

from overlaptop.fleet.merging import Merger, NodeSnapshot, out_of_reach
from overlaptop.fleet.snapshot import HubState, NodeView, RankView
from overlaptop.wire import commands
from overlaptop.wire.knobs import KnobFacts
from overlaptop.wire.messages import Notice

from .builders import BUCKET_CAP_MB, T0, Clock, S, info, report, sample, step, welcome
from .hub import PlayedFleet


class Nodes:
    """A job of two ranks on each node, as each node's hub tells of it."""

    def __init__(self, count=2):
        self.clock = Clock()
        self.merger = Merger()
        self.names = [f"gpu-{letter}" for letter in "abcdefgh"[:count]]
        self.fleets = [PlayedFleet(self.clock, name) for name in self.names]
        self.connections = [(HubState.LIVE, T0, "")] * count
        for index, fleet in enumerate(self.fleets):
            fleet.apply(welcome(world_size=2 * count))
            for rank in (2 * index, 2 * index + 1):
                fleet.apply(info(rank, host=self.names[index], control_allowed=True))

    def send(self, node, *messages):
        for message in messages:
            self.fleets[node].apply(message)

    def lose(self, node, state=HubState.LOST, note="the line broke"):
        self.connections[node] = (state, self.clock(), note)

    def seen(self, **words):
        parts = [
            NodeSnapshot(NodeView(name, *connection), fleet.snapshot())
            for name, connection, fleet in zip(self.names, self.connections, self.fleets, strict=True)
        ]
        return self.merger.merge(parts, self.clock(), **words)


@pytest.fixture
def nodes():
    return Nodes()


def setting(nodes, *, at_ns=None):
    command = structs.replace(commands.make_setting(BUCKET_CAP_MB, 50), at_ns=at_ns or nodes.clock())
    for node in range(len(nodes.fleets)):
        nodes.send(node, command)
    return command


def test_the_ranks_of_all_nodes_are_one_job(nodes):
    nodes.send(0, step(0, 4), step(1, 4))
    nodes.send(1, step(2, 4, comm=60, hidden=60), step(3, 3))
    seen = nodes.seen()
    assert [(view.rank, view.node, view.node_lost) for view in seen.ranks] == [
        (0, "gpu-a", False), (1, "gpu-a", False), (2, "gpu-b", False), (3, "gpu-b", False),
    ]  # fmt: skip
    assert [(node.name, node.ranks, node.lost) for node in seen.nodes] == [
        ("gpu-a", (0, 1), False), ("gpu-b", (2, 3), False),
    ]  # fmt: skip
    assert (seen.hub_state, seen.hub_note, seen.job.world_size) == (HubState.LIVE, "", 4)
    assert seen.totals.step == 3
    assert seen.totals.overlap == pytest.approx((20 + 20 + 60 + 20) / (30 + 30 + 60 + 30))
    assert [fresh.rank for fresh in seen.fresh] == [0, 1, 2, 3]
    assert nodes.seen().fresh == ()


@pytest.mark.parametrize(
    ("unseen", "words"), [([3], "rank 3 has"), ([2, 3], "ranks 2-3 have"), ([0, 2, 3], "ranks 0, 2-3 have")]
)
def test_unseen_ranks_are_named(unseen, words):
    views = [RankView(rank, None if rank in unseen else info(rank)) for rank in range(4)]
    why = f"{words} not been seen (is their host watched?): a change needs all ranks"
    assert out_of_reach("change", (), views) == why


def test_with_all_nodes_lost_the_last_figures_stay(nodes):
    nodes.send(0, step(0, 4), step(1, 4))
    nodes.send(1, step(2, 5), step(3, 5))
    nodes.lose(1, note="no route")
    nodes.clock.pass_s(3)
    nodes.lose(0)
    seen = nodes.seen()
    assert (seen.hub_state, seen.hub_since_ns, seen.hub_note) == (
        HubState.LOST, T0 + 3 * S, "gpu-a: the line broke",
    )  # fmt: skip
    assert (seen.totals.step, len(seen.ranks)) == (4, 4)


@pytest.mark.parametrize(
    ("states", "together"),
    [
        ("live lost", "live"), ("stale lost", "stale"), ("ended live", "live"), ("ended lost", "lost"),
        ("ended ended", "ended"), ("waiting lost", "waiting"), ("ended waiting", "waiting"),
    ],
)  # fmt: skip
def test_the_connection_to_the_job_is_the_best_of_its_nodes(nodes, states, together):
    for node, state in enumerate(states.split()):
        nodes.lose(node, HubState(state))
    assert nodes.seen().hub_state is HubState(together)


def test_node_without_ranks_of_the_job_does_not_count(nodes):
    nodes.fleets[1] = PlayedFleet(nodes.clock, "gpu-b")
    nodes.lose(0, HubState.ENDED, "if it is started again, it is shown here")
    nodes.lose(1, HubState.WAITING, "the job is not there")
    assert nodes.seen().hub_state is HubState.ENDED
    nodes.fleets[0] = PlayedFleet(nodes.clock, "gpu-a")
    seen = nodes.seen(waiting="waiting for a job on gpu-a, gpu-b")
    assert (seen.hub_state, seen.hub_note) == (HubState.WAITING, "waiting for a job on gpu-a, gpu-b")
    assert seen.job is None


def test_a_host_that_is_there_by_two_names_doubles_nothing(nodes):
    for rank in (0, 1):
        nodes.send(1, info(rank, host="gpu-a"))
    for node in (0, 1):
        nodes.send(node, step(0, 1), step(1, 1), sample(0, 1.0), Notice(0, T0, "info", "hello"))
    seen = nodes.seen()
    assert [view.rank for view in seen.ranks] == [0, 1, 2, 3]
    assert (len(seen.fresh), len(seen.fresh_samples), len(seen.notices)) == (2, 1, 1)
    nodes.lose(0)
    nodes.send(1, step(0, 2))
    seen = nodes.seen()
    assert (seen.ranks[0].node, [fresh.step for fresh in seen.fresh]) == ("gpu-b", [2])
    nodes.connections[0] = (HubState.LIVE, T0, "")
    nodes.send(0, step(0, 2))  # as its history has it, once the line is back
    assert nodes.seen().fresh == ()


def test_notices_of_all_nodes_stand_in_their_order(nodes):
    nodes.send(0, Notice(0, T0 + 2, "info", "second"), Notice(0, T0 + 5 * S, "info", "fourth"))
    nodes.send(1, Notice(2, T0 + 1, "info", "first"), Notice(0, T0 + 3, "warning", "of the relay"))
    texts = [notice.text for notice in nodes.seen().notices]
    assert texts == ["first", "second", "of the relay", "fourth"]


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


def view_of(nodes):
    (view,) = nodes.seen().commands
    return view


def test_a_command_stands_where_the_slowest_rank_of_any_node_is(nodes):
    command = setting(nodes)
    assert (view_of(nodes).state, len(view_of(nodes).ranks)) == ("sent", 4)
    for state in ("accepted", "agreed"):
        for rank in range(4):
            nodes.send(rank // 2, report(rank, command, state, step=40 if state == "agreed" else None))
        assert view_of(nodes).state == state
    for rank in range(3):
        nodes.send(rank // 2, report(rank, command, "changed", step=40, old="25", new="50"))
    assert (view_of(nodes).state, view_of(nodes).done) == ("agreed", False)
    nodes.send(1, report(3, command, "changed", step=40, old="25", new="50"))
    view = view_of(nodes)
    assert (view.state, view.done, view.step, view.old, view.new) == ("changed", True, 40, "25", "50")
    assert (view.words, view.by, view.knob, view.value) == (
        "set bucket_cap_mb 50", command.by, "bucket_cap_mb", 50,
    )  # fmt: skip
    assert view_of(nodes) is view  # nothing is worked out twice


def test_outcome_on_a_lost_node_is_unknown_until_it_reports(nodes):
    command = setting(nodes)
    for rank in range(4):
        nodes.send(rank // 2, report(rank, command, "agreed", step=40))
    nodes.lose(1)
    for rank in (0, 1):
        nodes.send(0, report(rank, command, "changed", step=40))
    nodes.clock.pass_s(10)
    assert (view_of(nodes).state, view_of(nodes).done) == ("agreed", False)  # the line may come back
    nodes.clock.pass_s(6)
    view = view_of(nodes)
    assert (view.state, view.done) == ("unknown", True)
    assert view.reason == "rank 2 is on gpu-b, which cannot be reached"
    nodes.connections[1] = (HubState.LIVE, nodes.clock(), "")
    for rank in (2, 3):
        nodes.send(1, report(rank, command, "changed", step=40))
    assert (view_of(nodes).state, view_of(nodes).done) == ("changed", True)
