"""Why a rank is late."""

from __future__ import annotations

import pytest

from overlaptop.findings.find import find
from overlaptop.findings.finding import Certainty

from .jobs import MS, healthy, job, rules


def late(rank, number, *more, late_rank=1):
    """As `healthy`, but one rank does more."""
    return [*healthy(rank, number), *(more if rank == late_rank else ())]


@pytest.mark.parametrize("watched", [True, False])
def test_in_a_healthy_job_nothing_is_found(watched):
    assert find(job(healthy, watched=watched)) == ()


def test_in_few_steps_nothing_is_found():
    assert find(job(lambda rank, number: late(rank, number, ("compute", 20)), steps=4)) == ()


def test_a_rank_that_computes_longer_is_named_with_what_mending_it_can_win():
    evidence = job(lambda rank, number: late(rank, number, ("compute", 20)))
    (found,) = find(evidence)
    assert (found.rule, found.ranks, found.certainty) == ("slow_gpu", (1,), Certainty.LIKELY)
    assert found.title.startswith("rank 1 computes 20")
    assert 19 * MS < found.gain_ns <= evidence.exposed_wait_ns < 21 * MS


def test_a_rank_that_computes_no_longer_has_no_slow_gpu():
    evidence = job(lambda rank, number: late(rank, number, ("idle", 20)))
    assert ("slow_gpu", (1,)) not in rules(evidence)
