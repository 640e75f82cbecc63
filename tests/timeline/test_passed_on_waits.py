"""A wait that is only another group's is blamed on the rank behind both."""

from overlaptop.timeline.arrivals import Collective, Part, lateness
from overlaptop.timeline.passed_on_waits import Link, PassedOnWait, passed_on_waits


def made(group, parts, not_attributed=""):
    of_ranks = tuple(Part(rank, *span) for rank, span in sorted(parts.items()))
    return Collective("allreduce", group, 1024, of_ranks, not_attributed)


# Ranks 0 and 1, and 2 and 3, share their layers (tp); 0 and 2, and 1 and 3, share their gradients (dp).
SLEEPS = [
    made("tp 0-1", {0: (40, 50), 1: (10, 50)}),  # rank 0 slept
    made("tp 2-3", {2: (10, 20), 3: (11, 20)}),
    made("dp 0-2", {0: (52, 60), 2: (22, 60)}),
    made("dp 1-3", {1: (51, 60), 3: (22, 60)}),
]


BY_THEMSELVES = [(0, 2, 60), (1, 1, 29)]
"""Rank, late in so many, waiting that it caused."""


def test_waits_through_another_group_are_followed_to_the_root():
    assert passed_on_waits(SLEEPS) == {3: PassedOnWait(0, (Link(1, "tp 0-1"),))}
    alone, followed = lateness(SLEEPS), lateness(SLEEPS, {3: 0})
    assert [(each.rank, each.late_count, each.caused_wait_ns) for each in alone.ranks[:2]] == BY_THEMSELVES
    assert (followed.first.rank, followed.first.late_count, followed.first.collectives) == (0, 3, 3)
    assert (followed.first.caused_wait_ns, followed.of(1).late_count, followed.wait_ns) == (89, 0, 90)


def test_chain_over_groups_is_named_from_late_rank_to_root():
    stages = [
        made("a", {0: (44, 60), 1: (20, 60), 2: (43, 60)}),
        made("b", {1: (61, 70), 2: (6, 70)}),
        made("c", {2: (71, 80), 3: (20, 80)}),
    ]
    assert passed_on_waits(stages)[2] == PassedOnWait(0, (Link(2, "b"), Link(1, "a")))
    assert passed_on_waits(list(reversed(stages)))[0] == PassedOnWait(0, (Link(2, "b"), Link(1, "a")))


def test_waits_in_receives_are_followed_within_one_group():
    """A pipeline: rank 2 sends back late, so rank 1 does."""
    back = [
        Collective("recv", "pp", 1, (Part(1, 10, 60), Part(2, 59, 60)), sender=2),
        Collective("recv", "pp", 1, (Part(0, 5, 70), Part(1, 65, 70)), sender=1),
    ]
    assert passed_on_waits(back) == {1: PassedOnWait(2, (Link(1, "pp"),))}
    found = lateness(back, {1: 2})
    assert (found.wait_ns, found.receive_wait_ns) == (49 + 60, 49 + 60)
    assert lateness([*back, *SLEEPS]).receive_wait_ns == 49 + 60


def test_of_two_waits_the_longer_one_is_followed():
    both = [made("a", {0: (40, 50), 1: (10, 50)}), made("b", {1: (12, 60), 2: (52, 60)})]
    assert passed_on_waits([*both, made("c", {1: (61, 70), 3: (10, 70)})])[2] == PassedOnWait(
        2, (Link(1, "b"),)
    )


def test_rank_that_waited_a_little_elsewhere_is_late_by_itself():
    computes = [made("tp", {0: (40, 45), 1: (0, 45)}), made("dp", {1: (60, 70), 3: (30, 70)})]
    assert passed_on_waits(computes) == {}


def test_waits_in_one_group_or_not_attributed_are_not_passed_on():
    same = [made("dp", {0: (40, 50), 1: (10, 50)}), made("dp", {1: (51, 60), 2: (12, 60)})]
    other = made("tp", {3: (10, 20), 4: (10, 20)})
    assert passed_on_waits(same) == passed_on_waits([*same, other]) == {}
    unknown = [made("tp", {0: (40, 50), 1: (10, 50)}, "the ends disagree"), *SLEEPS[1:]]
    assert 2 not in passed_on_waits(unknown)
    circle = [made("a", {0: (40, 41), 1: (0, 50)}), made("b", {1: (40, 41), 0: (0, 50)})]
    assert set(passed_on_waits(circle).values()) <= {
        PassedOnWait(0, (Link(1, "a"),)),
        PassedOnWait(1, (Link(0, "b"),)),
    }
