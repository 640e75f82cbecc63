"""All ranks wait for a CPU."""

from __future__ import annotations

import pytest

from overlaptop.findings.finding import Certainty
from tests.fleet.builders import MS

from .jobs import healthy, job, rules, the


def waits(*delays_ms, steps=24):
    return job(healthy, ranks=2, steps=steps, delayed_ns=lambda rank, _: delays_ms[rank] * MS)


def test_too_few_cpus_are_told_where_all_ranks_wait_for_one():
    found = the(waits(30, 25), "short_cpus")
    assert (found.ranks, found.gain_ns, found.certainty) == ((), 25 * MS, Certainty.MEASURED)


@pytest.mark.parametrize("evidence", [waits(30, 2), waits(5, 5), waits(30, 30, steps=8)])
def test_one_rank_a_little_or_a_few_steps_are_no_sign_of_it(evidence):
    assert "short_cpus" not in {rule for rule, _ in rules(evidence)}
