"""The same bytes take longer than they did: once, lastingly, and not since CPUs or other steps are slow."""

import math
import random
from dataclasses import replace

import msgspec
import pytest

from overlaptop.findings.exposure import exposure
from overlaptop.findings.find import find
from overlaptop.findings.rules import slower_transfers
from overlaptop.findings.rules.slower_transfers import KIND_STEPS, LEAST_BEFORE, LEAST_SLOW, STRETCH
from overlaptop.fleet.waits import StepTransfer
from tests.fleet.builders import MS, T0

from .timelines import MIB, PHASES, Timeline, call, job

EACH_MS = 500
BEFORE, SLOW = LEAST_BEFORE * STRETCH, LEAST_SLOW * STRETCH


def exposed(rank, number):
    """An all-reduce with nothing beside it."""
    return Timeline(500, ((0, 300), (380, 500)), (call("allreduce_", 300, 380),), phases=PHASES)


def hidden(rank, number):
    return Timeline(500, ((0, 500),), (call("allreduce_", 300, 380),), phases=PHASES)


@pytest.fixture(scope="module")
def evidence():
    return job(exposed, steps=24)


def transfers(takes_ms, size=lambda number: 25 * MIB, collectives=lambda number: 1):
    """A step each half second."""
    return tuple(
        StepTransfer(number, T0 + number * EACH_MS * MS, collectives(number), size(number), ms * MS)
        for number, ms in enumerate(takes_ms)
    )


def found_in(evidence, *args, **how):
    kept = transfers(*args, **how)
    return next(
        (each for each in find(replace(evidence, transfers=kept)) if each.rule == "slower_transfers"), None
    )


def test_what_they_take_now_and_took_before_is_said(evidence):
    found = found_in(evidence, [41] * 60 + [82] * 20)
    assert found.title == "transfer takes 82.0 ms a step, before it took 41.0 ms"
    assert found.measured == "for 10 s; each of these steps moves 25.0 MiB in 1 collective"
    assert found.gain_ns == pytest.approx(exposure(evidence).exposed_transfer_ns / 2)
    assert found.ranks == ()


@pytest.mark.parametrize(
    ("takes_ms", "is_found"),
    [
        ([40] * BEFORE + [60] * SLOW, True),
        ([40] * BEFORE + [59] * SLOW, False),
        ([40] * (BEFORE - 1) + [60] * SLOW, False),
        ([40] * 60 + [80] * (SLOW - STRETCH // 2 - 1), False),
        ([40] * 60 + [80] * SLOW + [40] * (STRETCH // 2 + 1), False),  # it is over
        ([40] * 60 + [80, 80, 80, 40, 80] * 8, True),
        ([40] * 60 + [80, 40] * 40, False),
        ([40] * 60 + [80] * 160, True),  # for most of the time
        ([20] * 20 + [40] * 100, False),  # few were fast, at the start
        (([40] * 60 + [80] * 15) * 4, False),  # it comes and goes
        ([], False),
    ],
)
def test_they_take_longer_since_one_time(evidence, takes_ms, is_found):
    assert (found_in(evidence, takes_ms) is not None) is is_found


@pytest.mark.parametrize(
    ("kind", "is_found"),
    [
        ({"size": lambda number: 25 * MIB}, True),
        ({"size": lambda number: MIB}, True),
        ({"size": lambda number: MIB - 1}, False),
        ({"size": lambda number: (25 + (number >= 80)) * MIB}, False),
        ({"collectives": lambda number: 1 + (number >= 80)}, False),
        # Every fourth does something else.
        ({"size": lambda number: (25 if number % 4 else 50) * MIB}, True),
        ({"size": lambda number: (50 if number >= 114 else 25) * MIB}, True),
    ],
)
def test_only_steps_are_compared_that_move_the_same(evidence, kind, is_found):
    assert (found_in(evidence, [40] * 80 + [80] * 40, **kind) is not None) is is_found


@pytest.mark.parametrize(("others", "is_found"), [(KIND_STEPS // 2, True), (KIND_STEPS // 2 + 1, False)])
def test_kind_of_most_of_the_newest_steps_is_compared(evidence, others, is_found):
    begin = 80 + SLOW
    takes_ms = [40] * 80 + [80] * (SLOW + others)
    found = found_in(evidence, takes_ms, lambda number: (25 + (number >= begin)) * MIB)
    assert (found is not None) is is_found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kept_up", [0.0, 0.5, 0.8])
def test_noise_is_not_taken_for_it_even_where_it_lasts(evidence, seed, kept_up):
    """``kept_up``: of what a step is slower than usual, so much is left in the next one."""
    dice, strays, takes_ms = random.Random(seed), 0.0, []
    for _ in range(300):
        strays = kept_up * strays + (1 - kept_up**2) ** 0.5 * dice.gauss(0, 0.2)
        takes_ms.append(40 * math.exp(strays))
    looks = (replace(evidence, transfers=transfers(takes_ms[:upto])) for upto in range(len(takes_ms)))
    assert not any(list(slower_transfers.look(each)) for each in looks)


def on_cpus(delayed_ms):
    facts = {"source": "host", "device": "cpu", "backend": "gloo"}
    waits = None if delayed_ms is None else delayed_ms * MS
    return job(
        exposed, steps=24, infos=lambda rank: facts,
        told=lambda totals, detail: (msgspec.structs.replace(totals, delayed_ns=waits), detail),
    )  # fmt: skip


@pytest.mark.parametrize(("delayed_ms", "is_found"), [(0, True), (10, True), (11, False), (None, False)])
def test_nothing_is_said_where_busy_cpus_move_the_bytes(delayed_ms, is_found):
    assert (found_in(on_cpus(delayed_ms), [40] * 60 + [80] * 20) is not None) is is_found


def test_nothing_is_said_of_transfers_that_compute_hides():
    assert found_in(job(hidden, steps=24), [40] * 60 + [80] * 20) is None


def test_a_running_job_is_seen_to_become_slower():
    """The steps that its splitter keeps."""

    def lay(rank, number):
        ends = 340 if number < 60 else 380
        return Timeline(500, ((0, 300), (ends, 500)), (call("allreduce_", 300, ends),), phases=PHASES)

    assert "slower_transfers" in {each.rule for each in find(job(lay, steps=74))}
