"""From marks to spans: what counts as compute, communication and stall; and which steps are measured."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources.base import CollectiveCall, Edge, Wait, phases_of
from overlaptop.agent.sources.hooked_source import MAX_MARKS, Assembler, RecordedCollective, RecordedStep
from overlaptop.agent.sources.host import HostSource
from overlaptop.timeline import spans
from overlaptop.wire import codec
from overlaptop.wire.messages import LEFT_OUT, PhaseSpan

CALL = CollectiveCall("allreduce_", 64, "0 default_pg", True, "gloo", "cpu", -1)


def step(number=0, begin=0, collectives=(), waits=(), edges=(), detailed=True):
    return RecordedStep(
        number,
        detailed,
        begin,
        end=begin + 100,
        edges=list(edges),
        collectives=[RecordedCollective(CALL, *each) for each in collectives],
        waits=list(waits),
        collective_count=len(collectives),
    )


@pytest.mark.parametrize(
    ("collectives", "waits", "compute", "comm", "stall"),
    [
        ([(10, 60, None, False)], [(40, 62, Wait.PURE)], (0, 40, 62, 100), (10, 60), (40, 60)),
        ([(10, 60, None, False)], [(40, 80, Wait.MIXED)], (0, 40, 60, 100), (10, 60), (40, 60)),
        ([], [(40, 80, Wait.PURE)], (0, 40, 80, 100), (), ()),
        ([(10, 30, 7, True)], [], (0, 10, 30, 100), (10, 30), (10, 30)),
    ],
    ids=["pure wait", "mixed wait: work beside it", "wait for something else", "on the compute stream"],
)
def test_a_wait_beside_communication_is_stall(collectives, waits, compute, comm, stall) -> None:
    measured = Assembler().assemble(step(collectives=collectives, waits=waits))
    lanes = (measured.compute, measured.comm, measured.stall)
    assert [spans.flatten(lane) for lane in lanes] == [compute, comm, stall]


def test_collective_that_outlives_its_step_counts_in_the_next_ones_too() -> None:
    assembler = Assembler()
    measured = [
        assembler.assemble(step(number, 100 * number, [(50, 250, None, False)] if number == 0 else ()))
        for number in range(3)
    ]
    assert [spans.flatten(each.comm) for each in measured] == [(50, 100), (100, 200), (200, 250)]
    assert [len(each.collectives) for each in measured] == [1, 0, 0]


def test_phases_of_accumulated_gradients_alternate() -> None:
    backward = (Edge.BACKWARD_BEGIN, Edge.BACKWARD_END)
    order = (*backward, *backward, Edge.OPTIMIZER_BEGIN, Edge.OPTIMIZER_END)
    edges = zip(order, (20, 40, 60, 80, 85, 99), strict=True)
    assert phases_of(0, 100, edges) == (
        PhaseSpan("forward", 0, 20),
        PhaseSpan("backward", 20, 40),
        PhaseSpan("forward", 40, 60),
        PhaseSpan("backward", 60, 80),
        PhaseSpan("optimizer", 85, 99),
    )


times = st.integers(-50, 150)
collectives = st.lists(
    st.tuples(times, times, st.sampled_from([None, "a", "b"]), st.booleans()), max_size=8
)
waits = st.lists(st.tuples(times, times, st.sampled_from(Wait)), max_size=8)
edges = st.lists(st.tuples(st.sampled_from(Edge), times), max_size=8)


@given(st.lists(st.tuples(collectives, waits, edges, st.booleans()), min_size=1, max_size=4))
def test_any_marks_make_messages_whose_parts_sum_to_the_step(recorded) -> None:
    assembler = Assembler()
    for number, (some_collectives, some_waits, some_edges, detailed) in enumerate(recorded):
        begin = number * 100
        made = step(
            number,
            begin,
            [(begin + a, begin + b, *rest) for a, b, *rest in some_collectives],
            [(begin + a, begin + b, kind) for a, b, kind in some_waits],
            [(edge, begin + at) for edge, at in some_edges],
            detailed,
        )
        measured = assembler.assemble(made)
        totals = reporter.totals(measured, 3, 0)
        if detailed:
            parts = (totals.hidden_ns, totals.exposed_ns, totals.compute_only_ns, totals.copy_only_ns)
            assert sum(parts) + totals.idle_ns == 100
        for message in (totals, reporter.detail(measured, 3)):
            assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize(
    ("batches", "most", "shown"),
    [
        ([[10, 11, 12, 13, 14], [12, 13, 14, 15, 16]], 1, [[13], [13]]),
        ([[4, 5, 6, 7], [7, 8, 9, 10, 11]], 3, [[4, 5, 7], [7, 9, 10]]),
    ],
)
def test_ranks_choose_the_same_steps_to_show(batches, most, shown) -> None:
    unnamed = SimpleNamespace(step=16, detailed=True, named=False)
    for batch, picked in zip(batches, shown, strict=True):
        steps = [SimpleNamespace(step=step, detailed=True, named=True) for step in batch]
        assert [each.step for each in reporter.best_detailed([*steps, unnamed], most)] == picked


# The host source.

ON_A_GPU = replace(CALL, backend="nccl", device_type="cuda", device_index=0)


class Done:
    def get_future(self):
        return self

    def done(self):
        return True

    def add_done_callback(self, callback):
        callback(self)


class CallsBackLate(Done):
    """One whose end Python is told of when its thread gets the interpreter."""

    def add_done_callback(self, callback):
        self.call_back = lambda: callback(self)


class WithoutFuture:
    def get_future(self):
        raise RuntimeError("Work::getFuture not implemented.")


@pytest.fixture
def source():
    made = HostSource(phases_only=False, every=2, reason="")
    made.boundary(0)
    return made


def issue(source, work, call=CALL):
    token = source.issue(lambda: call)
    if token is not None:
        source.issued(token, work)


def wait(source, work=None):
    source.wait_end(source.wait_begin(), Wait.PURE, work)


def totals(source):
    return [reporter.totals(each, 0, source.lost) for each in source.take()]


def lanes(step):
    return step.compute_ns, step.comm_ns, step.hidden_ns, step.exposed_ns, step.stall_ns


def test_collective_ends_when_the_job_could_see_its_end(source):
    work = CallsBackLate()
    issue(source, work)
    wait(source)
    assert source.outstanding == 1
    source.boundary(1)
    source.boundary(2)
    source.boundary(3)
    work.call_back()
    assert source.outstanding == 0
    first, _, third = totals(source)
    assert None not in lanes(first)
    assert 0 < first.comm_ns < first.step_ns
    assert (first.collectives, first.comm_bytes, first.dropped) == (1, 64, 0)
    assert third.comm_ns == 0


UNKNOWN = {
    "its end is hidden": lambda source: issue(source, WithoutFuture()),
    "more than 4,096 waits": lambda source: [wait(source) for _ in range(MAX_MARKS + 1)],
    "more than 4,096 collectives": lambda source: [
        (issue(source, Done()), wait(source)) for _ in range(MAX_MARKS + 9)
    ],
    "on cuda": lambda source: issue(source, Done(), ON_A_GPU),
}


@pytest.mark.parametrize(("reason", "happens"), UNKNOWN.items(), ids=UNKNOWN)
def test_step_that_cannot_be_timed_has_a_reason(source, reason, happens):
    happens(source)
    for step in range(1, 4):
        source.boundary(step)
    unknown, _, known = totals(source)
    assert (*lanes(unknown), unknown.overlap, unknown.dropped) == (*(None,) * 6, 0)
    assert reason in source.reason
    assert LEFT_OUT in source.reason
    assert None not in lanes(known)
