"""The offset between two clocks, from round trips whose truth the test knows."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.jobs.clock import KEPT, ClockOffset
from overlaptop.wire.joining import Pong

MS = 1_000_000
S = 1_000_000_000
UNIX_NS = 1_700_000_000 * S


def trip(clock, second, offset_ns, there_ns, back_ns, held_ns=0):
    """One round trip that begins in that second, and takes so long there, back, and at the host."""
    at_ns = UNIX_NS + second * S
    received_ns = at_ns + there_ns + offset_ns
    clock.add(Pong(at_ns, received_ns, received_ns + held_ns), at_ns + there_ns + held_ns + back_ns)


def test_an_offset_is_held_while_nothing_contradicts_it():
    """What was shifted by it would otherwise move with every round trip."""
    noise = random.Random(3)
    clock = ClockOffset()
    trip(clock, 0, S, 1 * MS, 1 * MS)
    held = clock.offset_ns
    for second in range(1, 60):
        trip(clock, second, S, noise.randint(MS, 3 * MS), noise.randint(MS, 3 * MS))
        assert clock.offset_ns == held


@pytest.mark.parametrize("drift", [-80e-6, 80e-6])
@given(seed=st.integers(0, 2**32), slowest_ms=st.integers(1, 40))
@settings(max_examples=10)
def test_offset_of_drifting_clocks_stays_within_the_residual(drift, seed, slowest_ms):
    noise, clock = random.Random(seed), ClockOffset()
    for second in range(120):
        offset_ns = 50 * MS + int(drift * second * S)
        ways = [noise.randint(MS // 10, slowest_ms * MS) for _ in range(2)]
        trip(clock, second, offset_ns, *ways)
        assert clock.offset_ns is not None
        assert clock.residual_ns is not None
        now_ns = offset_ns + int(drift * sum(ways))
        assert abs(clock.offset_ns - now_ns) <= clock.residual_ns + 1
    assert clock.residual_ns < 6 * slowest_ms * MS


@pytest.mark.parametrize("step_ns", [-3600 * S, -50 * MS, 50 * MS, 3600 * S])
def test_a_clock_that_is_set_is_followed_at_once(step_ns):
    there, here = ClockOffset(), ClockOffset()
    for second in range(KEPT):
        trip(there, second, 0, MS, MS)
    trip(there, KEPT, step_ns, 5 * MS, 5 * MS)
    trip(here, 0, 0, MS, MS)
    trip(here, -step_ns // S, step_ns, 5 * MS, 5 * MS)
    assert (there.offset_ns, here.offset_ns, here.residual_ns) == (step_ns, step_ns, 5 * MS)


def test_a_trip_that_cannot_have_been_so_is_passed_over():
    clock = ClockOffset()
    # Answered before it was received, back before it was sent, longer there than it was away.
    for pong, back_ns in ((Pong(100, 50, 40), 200), (Pong(200, 50, 60), 100), (Pong(100, 50, 500), 200)):
        clock.add(pong, back_ns)
    assert clock.offset_ns is None
