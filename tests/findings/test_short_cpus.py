"""All ranks wait for a CPU."""

import pytest

from overlaptop.findings.finding import Certainty
from overlaptop.wire.devices import NodeShare
from tests.fleet.builders import MS, numa

from .jobs import healthy, job, rules, the


def waits(*delays_ms, steps=24, facts=()):
    return job(healthy, *facts, ranks=2, steps=steps, delayed_ns=lambda rank, _: delays_ms[rank] * MS)


def test_short_cpus_are_told_where_all_ranks_wait_for_one():
    found = the(waits(30, 25), "short_cpus")
    assert (found.ranks, found.gain_ns, found.certainty) == ((), 25 * MS, Certainty.MEASURED)
    assert found.title.endswith(" a step for a CPU")


@pytest.mark.parametrize(
    ("limit_percent", "says"),
    [
        (150, "its container may use 1.5 of 8 CPUs"),
        (800, "other threads use the 8 CPUs of 2 ranks"),
        (None, "other threads use the 8 CPUs of 2 ranks"),
    ],
)
def test_containers_limit_below_its_cpus_is_named(limit_percent, says):
    places = [
        numa(rank, cpu_nodes=(NodeShare(0, 8),), cpu_limit_percent=limit_percent) for rank in range(2)
    ]
    assert says in the(waits(30, 25, facts=places), "short_cpus").title


def test_cpus_of_the_ranks_that_have_fewest_are_named():
    places = [
        numa(0, cpu_set="0-7", cpu_nodes=(NodeShare(0, 8),)),
        numa(1, cpu_set="8", cpu_nodes=(NodeShare(0, 1),)),
    ]
    title = the(waits(30, 25, facts=places), "short_cpus").title
    assert title.endswith("for a CPU: other threads use the 1 CPU of 1 rank")


def test_fewer_cpus_than_ranks_are_named():
    places = [numa(rank, cpu_set="0", cpu_nodes=(NodeShare(0, 1),)) for rank in range(2)]
    assert the(waits(30, 25, facts=places), "short_cpus").title.endswith("for a CPU: 2 ranks share 1 CPU")


@pytest.mark.parametrize("evidence", [waits(30, 2), waits(5, 5), waits(30, 30, steps=8)])
def test_one_rank_a_little_or_a_few_steps_are_no_sign_of_it(evidence):
    assert "short_cpus" not in {rule for rule, _ in rules(evidence)}
