"""From marks to spans: what counts as compute, communication and stall."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources.assemble import Assembler
from overlaptop.agent.sources.base import CollectiveCall, Edge, Wait
from overlaptop.agent.sources.recorded_step import RecordedCollective, RecordedStep
from overlaptop.agent.sources.sampling import MAX_EVERY, Sampler
from overlaptop.timeline import spans
from overlaptop.wire import codec

CALL = CollectiveCall("allreduce_", 64, "0", True, "nccl", "cuda", 0, None)


def step(number=0, begin=0, end=100, collectives=(), waits=(), edges=(), detailed=True):
    return RecordedStep(
        number,
        detailed,
        begin,
        end=end,
        edges=list(edges),
        collectives=[RecordedCollective(CALL, *each) for each in collectives],
        waits=list(waits),
        collective_count=len(collectives),
    )


def numbers(measured):
    return [spans.flatten(lane) for lane in (measured.compute, measured.comm, measured.stall)]


def test_a_pure_wait_beside_communication_is_stall() -> None:
    measured = Assembler().assemble(step(collectives=[(10, 60, None, False)], waits=[(40, 62, Wait.PURE)]))
    assert numbers(measured) == [(0, 40, 62, 100), (10, 60), (40, 60)]


def test_a_mixed_wait_is_stall_only_beside_communication() -> None:
    measured = Assembler().assemble(step(collectives=[(10, 60, None, False)], waits=[(40, 80, Wait.MIXED)]))
    assert numbers(measured) == [(0, 40, 60, 100), (10, 60), (40, 60)]


def test_a_pure_wait_for_something_else_is_idle() -> None:
    measured = Assembler().assemble(step(waits=[(40, 80, Wait.PURE)]))
    assert numbers(measured) == [(0, 40, 80, 100), (), ()]
    assert reporter.totals(measured, 0, 0).idle_ns == 40


def test_a_collective_on_the_compute_stream_is_exposed_and_stall() -> None:
    measured = Assembler().assemble(step(collectives=[(10, 30, 7, True)]))
    assert numbers(measured) == [(0, 10, 30, 100), (10, 30), (10, 30)]


def test_one_that_queues_on_its_stream_starts_when_the_one_before_it_ends() -> None:
    measured = Assembler().assemble(step(collectives=[(10, 50, "g", False), (20, 80, "g", False)]))
    assert [(each.start_ns, each.end_ns) for each in measured.collectives] == [(10, 50), (50, 80)]


def test_groups_do_not_queue_behind_each_other() -> None:
    measured = Assembler().assemble(step(collectives=[(10, 50, "g", False), (20, 80, "h", False)]))
    assert [(each.start_ns, each.end_ns) for each in measured.collectives] == [(10, 50), (20, 80)]


def test_what_outlives_a_step_is_communication_in_the_next() -> None:
    assembler = Assembler()
    first = assembler.assemble(step(0, 0, 100, collectives=[(90, 130, None, False)]))
    second = assembler.assemble(step(1, 100, 200))
    assert spans.flatten(first.comm) == (90, 100)
    assert spans.flatten(second.comm) == (100, 130)
    assert len(second.collectives) == 0


def test_phases_of_accumulated_gradients_alternate() -> None:
    edges = [
        (Edge.BACKWARD_BEGIN, 20),
        (Edge.BACKWARD_END, 40),
        (Edge.BACKWARD_BEGIN, 60),
        (Edge.BACKWARD_END, 80),
        (Edge.OPTIMIZER_BEGIN, 85),
        (Edge.OPTIMIZER_END, 99),
    ]
    phases = Assembler().assemble(step(edges=edges)).phases
    assert [(phase.name, phase.start_ns, phase.end_ns) for phase in phases] == [
        ("forward", 0, 20),
        ("backward", 20, 40),
        ("forward", 40, 60),
        ("backward", 60, 80),
        ("optimizer", 85, 99),
    ]


def test_a_step_measured_without_collectives_has_no_lane_totals() -> None:
    measured = Assembler().assemble(step(detailed=False, edges=[(Edge.BACKWARD_BEGIN, 20)]))
    totals = reporter.totals(measured, 0, 0)
    assert (totals.comm_ns, totals.overlap, totals.idle_ns, totals.stall_ns) == (None, None, None, None)
    assert (totals.step_ns, totals.forward_ns) == (100, 20)


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
        shift = [(begin + a, begin + b, *rest) for a, b, *rest in some_collectives]
        measured = assembler.assemble(
            step(
                number,
                begin,
                begin + 100,
                shift,
                [(begin + a, begin + b, kind) for a, b, kind in some_waits],
                [(edge, begin + at) for edge, at in some_edges],
                detailed,
            )
        )
        totals = reporter.totals(measured, 3, 0)
        if detailed:
            parts = (totals.hidden_ns, totals.exposed_ns, totals.compute_only_ns, totals.copy_only_ns)
            assert sum(parts) + totals.idle_ns == 100
        assert codec.decode(codec.encode(totals)) == totals
        detail = reporter.detail(measured, 3)
        assert codec.decode(codec.encode(detail)) == detail


@pytest.mark.parametrize(
    ("batches", "most", "shown"),
    [
        ([[4, 5, 6, 7]], 1, [[4]]),
        ([[4, 5], [6, 7, 8, 9]], 1, [[4], [8]]),
        ([[0, 1, 8]], 1, [[0]]),
        ([[], [3]], 1, [[], [3]]),
        ([[4, 5, 6, 7], [7, 8, 9, 10, 11]], 3, [[4, 6, 7], [8, 10, 11]]),
        ([[4, 5, 6]], 0, [[]]),
    ],
)
def test_of_steps_that_are_ready_together_all_ranks_show_the_same(batches, most, shown) -> None:
    picked = []
    for batch in batches:
        steps = [SimpleNamespace(step=step, detailed=True, named=True) for step in batch]
        unnamed = SimpleNamespace(step=16, detailed=True, named=False)
        picked.append([each.step for each in reporter.best_detailed([*steps, unnamed], most)])
    assert picked == shown


def choose(sampler: Sampler, steps: int, cost_ns: int, step_ns: int) -> list[bool]:
    chosen = []
    for _ in range(steps):
        chosen.append(sampler.next_is_detailed())
        if chosen[-1]:
            sampler.learn(cost_ns, step_ns)
    return chosen


@given(st.integers(1, 10**8), st.integers(10**5, 10**9), st.integers(0, 5))
def test_sampling_keeps_to_its_budget_unless_even_the_rarest_is_too_dear(
    cost_ns: int, step_ns: int, settle_steps: int
) -> None:
    sampler = Sampler(None, budget=0.01, settle_steps=settle_steps)
    chosen = choose(sampler, 1000, cost_ns, step_ns)
    assert not any(chosen[:settle_steps])
    assert chosen[settle_steps]
    spent_ns = sum(chosen[settle_steps + 1 :]) * cost_ns
    assert spent_ns <= 0.01 * step_ns * 1000 or sampler.every == MAX_EVERY


def test_a_cheap_job_is_measured_in_every_step() -> None:
    sampler = Sampler(None, budget=0.01, settle_steps=3)
    assert choose(sampler, 9, cost_ns=1_000, step_ns=10_000_000) == [False] * 3 + [True] * 6


def test_one_slow_step_moves_the_choice_half_the_way() -> None:
    sampler = Sampler(None, budget=0.01, settle_steps=0)
    sampler.learn(cost_ns=100, step_ns=10_000)
    sampler.learn(cost_ns=4_000, step_ns=10_000)
    assert sampler.every == 32  # the power of two above (1 + 40) / 2


def test_ranks_whose_costs_differ_measure_the_same_steps_as_far_as_each_measures() -> None:
    chosen = []
    for cost_ns in (200, 300):
        sampler = Sampler(None, budget=0.01, settle_steps=3)
        chosen.append({at for at, taken in enumerate(choose(sampler, 50, cost_ns, 10_000)) if taken})
    often, seldom = chosen
    assert len(often) > len(seldom) > 10
    assert seldom <= often


def test_a_fixed_n_is_kept_from_the_first_step() -> None:
    sampler = Sampler(3, budget=0.01, settle_steps=3)
    assert choose(sampler, 7, cost_ns=10**9, step_ns=1) == [True, False, False] * 2 + [True]
