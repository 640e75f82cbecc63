"""What differs between two runs, and what is noise."""

import random
from statistics import fmean

import pytest
from msgspec.structs import replace

from overlaptop.fleet.waits import StepWaits
from overlaptop.records import Figure, Work
from overlaptop.runs.compare import bucket_sizes_differ, differences, unlike
from overlaptop.runs.samples import Samples
from overlaptop.timeline.arrivals import Collective
from tests.fleet.builders import MS, T0, S, step, unmeasured


def figures(seed, *, steps=400, longer=1.0, slower=1.0, ranks=2):
    """Of a job whose machine is slow for seconds at a time; ``longer``: all of the step, ``slower``: its
    broadcast.
    """
    dice, samples, drift, at_ns = random.Random(seed), Samples(), 0.0, 10**18
    for number in range(steps):
        drift = 0.9 * drift + dice.gauss(0, 0.01)
        noise = (1 + drift + dice.gauss(0, 0.02)) * (2 if dice.random() < 0.02 else 1)
        length = 80 * noise * longer
        made = [
            step(rank, number, compute=length - 12, comm=30, hidden=18, idle=0, start_ns=at_ns)
            for rank in range(ranks)
        ]
        samples.add_steps(made)
        reduce_ns, cast_ns = (round(each * MS * (1 + dice.gauss(0, 0.05))) for each in (10, 5 * slower))
        calls = _call("allreduce_", at_ns, reduce_ns), _call("broadcast_", at_ns, cast_ns)
        samples.add_waits(StepWaits.of(number, at_ns, made[0].step_ns, calls, {}))
        at_ns += made[0].step_ns
    return samples.figures()


def _call(op, start_ns, length_ns):
    return Collective(op, "pg", 1 << 20, dict.fromkeys((0, 1), (start_ns, start_ns + length_ns)))


def named(found):
    return {each.name: each for each in found}


def differing(a, b):
    return {each.name for each in differences(a, b) if each.differs}


@pytest.mark.parametrize("steps", [60, 180])
def test_runs_of_one_job_do_not_differ(steps):
    pairs = [[figures(2 * seed + run, steps=steps) for run in (0, 1)] for seed in range(40)]
    assert fmean(bool(differing(*pair)) for pair in pairs) <= 0.05


def test_step_that_is_three_percent_longer_is_found_with_its_interval():
    found = [
        named(differences(figures(2 * seed), figures(2 * seed + 1, longer=1.03)))["step"]
        for seed in range(20)
    ]
    assert fmean(each.differs for each in found) >= 0.9
    assert fmean(each.difference_low <= 0.03 <= each.difference_high for each in found) >= 0.9


def test_operation_that_is_ten_percent_slower_is_found_and_no_other():
    a, b = figures(1), figures(2, slower=1.1)
    assert differing(a, b) == {"op broadcast_", "bucket broadcast_ 1.00 MiB pg", "group pg"}
    assert named(differences(a, b))["op broadcast_"].difference == pytest.approx(0.1, abs=0.03)


def steady(name, value, noise, unit="ns"):
    """A figure whose blocks hardly vary."""
    blocks = [value + at % 3 * noise for at in range(28)]
    return Figure(name, unit, value, None, 56, blocks)


@pytest.mark.parametrize(("op_ms", "differs"), [(0.2, False), (8, True)])
def test_operation_differs_if_the_step_would_notice(op_ms, differs):
    step = steady("step", 80.0 * MS, 0.08 * MS)
    a, b = (steady("op send", longer * op_ms * MS, op_ms * MS / 1000) for longer in (1, 1.25))
    assert differing([step, a], [step, b]) == ({"op send"} if differs else set())


@pytest.mark.parametrize(
    ("unit", "before", "after", "differs", "difference"),
    [
        ("ns", 0.0, 12.0 * MS, True, None),  # of 0 there is no share
        ("ns", 0.0, 0.0, False, None),
        ("share", 0.1, 0.4, True, pytest.approx(0.3)),  # in points
        ("share", 0.0, 0.3, True, pytest.approx(0.3)),
    ],
)
def test_difference_from_0_and_of_shares(unit, before, after, differs, difference):
    noise = 1000.0 if unit == "ns" else 0.001
    (found,) = differences(*([steady("figure", value, noise, unit)] for value in (before, after)))
    assert (found.differs, found.difference) == (differs, difference)


def test_runs_of_unequal_length_are_compared():
    a, b = figures(1, steps=20), figures(2, steps=400, longer=1.5)
    assert [len(named(each)["step"].blocks) for each in (a, b)] == [7, 28]
    assert named(differences(a, b))["step"].difference == pytest.approx(0.5, abs=0.1)


def test_order_of_operations_is_that_of_some_steps():
    def work(*orders):
        samples = Samples(first_step=0)
        for number, operations in enumerate(orders):
            samples.add_steps([step(rank, number, start_ns=10**18) for rank in (0, 1)])
            calls = tuple(_call(op, 10**18 + at, 10) for at, op in enumerate(operations))
            samples.add_waits(StepWaits.of(number, 10**18, 80 * MS, calls, {}))
        return samples.work(2).operations

    stop = ["pg: broadcast_ 1048576", "pg: allreduce_ 1048576"]
    assert work(*[["allreduce_"], ["broadcast_", "allreduce_"]] * 2, ["send"]) == [stop[1:], stop]
    assert work(["allreduce_"], ["send"]) is None


BYTES, CALL = 1 << 20, "0 dp: allreduce_"
WHOLE, HALVES = [f"{CALL} {BYTES}"], [f"{CALL} {BYTES // 2}"] * 2
BARRIER = "0 dp: barrier None"
REDUCE = "allreduce of 0 dp (1,048,576 bytes)"


@pytest.mark.parametrize(
    ("a", "b", "unlike_in", "other_buckets"),
    [
        ([WHOLE], [["0 dp: broadcast_ 8", *WHOLE], WHOLE], None, False),
        ([WHOLE], [HALVES], None, True),
        ([WHOLE, HALVES], [HALVES], None, True),
        ([WHOLE], [[BARRIER, *HALVES], HALVES], None, True),
        ([WHOLE], None, None, False),
        ([[BARRIER, *WHOLE]], [[*WHOLE, BARRIER]], ("barrier of 0 dp (1 call)", REDUCE), False),
        ([WHOLE], [WHOLE * 2], (REDUCE, "allreduce of 0 dp (2,097,152 bytes)"), False),
        ([WHOLE], [[*WHOLE, BARRIER]], ("nothing", "barrier of 0 dp (1 call)"), False),
    ],
)
def test_first_unlike_operation_is_named_except_buckets(a, b, unlike_in, other_buckets):
    runs = Work(2, BYTES, a), Work(2, BYTES, b)
    why = "the first difference of a step is {} in A, {} in B".format(*unlike_in) if unlike_in else ""
    assert (unlike(*runs), bucket_sizes_differ(*runs)) == (why, other_buckets)


@pytest.mark.parametrize(
    ("b", "why"),
    [
        (Work(2, 2 * BYTES, None), "A moves 1.00 MiB a step, B 2.00 MiB"),
        (Work(2, None, None), ""),
        (Work(4, BYTES, [WHOLE]), "A has 2 ranks, B has 4"),
    ],
)
def test_unlike_bytes_and_ranks_are_named(b, why):
    assert unlike(Work(2, BYTES, [WHOLE]), b) == why


# A job that was started again


def made(first, count, *, began_s, ms, ranks=(0, 1)):
    """Steps of all ranks, one after another."""
    return [
        replace(unmeasured(rank, first + at, ms), start_ns=T0 + began_s * S + at * ms * MS)
        for at in range(count)
        for rank in ranks
    ]


@pytest.mark.parametrize("first", [0, 5000])
def test_job_that_was_started_again_is_reported_since_then(first):
    samples, before = Samples(), made(first, 50, began_s=0, ms=80)
    samples.add_steps(before)
    samples.add_steps(made(0, 20, began_s=60, ms=40, ranks=(0,)))
    samples.add_steps(before)  # rank 1 keeps them until it steps again
    samples.add_steps(made(0, 20, began_s=60, ms=40, ranks=(1,)))
    assert [len(of_ranks) for of_ranks in samples.going.values()] == [2] * 18
    assert samples.lengths_ns() == [40 * MS] * 18
