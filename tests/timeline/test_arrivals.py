"""Matching a collective over its ranks, and telling waiting from transfer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.timeline.arrivals import Collective, Link, PassedOnWait, lateness, passed_on_waits, waiting
from overlaptop.timeline.matching import match
from overlaptop.timeline.overlap import break_down
from overlaptop.timeline.spans import from_pairs
from overlaptop.wire.messages import CollectiveSpan

from .strategies import offsets_ns, raw_pairs, ticks

spans_ns = st.tuples(offsets_ns, offsets_ns).map(sorted)
parts = st.dictionaries(st.integers(0, 4), spans_ns, min_size=1)


def calls(*spans, op="allreduce", group="dp", size=1024, **more):
    return [CollectiveSpan(op, size, group, True, start, end, **more) for start, end in spans]


def numbered(*spans, **more):
    """Calls of which the first of each triple is the sequence number."""
    return [call for number, *span in spans for call in calls(span, sequence=number, **more)]


def collective_of(spans, not_attributed=""):
    return Collective("allreduce", "dp", 1024, dict(sorted(spans.items())), not_attributed)


# One collective


@given(parts)
def test_wait_and_transfer_sum_to_the_duration(spans):
    found = collective_of(spans)
    last = max(start for start, _ in spans.values())
    for rank, (start, end) in spans.items():
        assert found.wait_ns(rank) + found.transfer_ns(rank) == end - start
        # The oracle: each ns of this rank's part in which some rank had not arrived.
        assert found.wait_ns(rank) == sum(ns < last for ns in range(start, end))
    assert found.least_transfer_ns == min(end - start for start, end in spans.values())
    assert found.caused_wait_ns == sum(found.wait_ns(rank) for rank in spans)
    latest = [rank for rank in spans if spans[rank][0] == last]
    assert found.late_rank == (latest[0] if len(latest) == 1 < len(spans) else None)


def test_bus_bandwidth_has_the_factors_of_nccl_tests():
    factors = {
        "allreduce": 1.5, "_allgather_base": 0.75, "_reduce_scatter_base": 0.75, "all_to_all": 0.75,
        "broadcast": 1.0, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 1.5,
    }  # fmt: skip
    for op, factor in factors.items():
        found = Collective(op, "", 4096, {0: (0, 1100), 1: (0, 1100), 2: (0, 1100), 3: (1000, 1100)})
        assert found.bus_bandwidth == pytest.approx(factor * 4096 / 100e-9)
        for op in ("gather", "barrier"):
            assert replace(found, op=op).bus_bandwidth is None


ROOTED = (
    "broadcast_", "ncclDevKernel_Broadcast_RING_LL", "reduce_", "gather_", "scatter", "coalesced gather_",
)  # fmt: skip


@given(parts, st.sampled_from(ROOTED))
def test_ends_are_judged_by_ranks_that_end_once_all_have_come(spans, op):
    (found,) = match(
        {rank: calls(span, op=op) for rank, span in spans.items()}, members={"dp": tuple(spans)}
    )
    last = max(start for start, _ in spans.values())
    stay = [(start, end) for start, end in spans.values() if end >= last]
    residual = max(end for _, end in stay) - min(end for _, end in stay)
    least = min(end - start for start, end in stay)
    longest = max(min(last, end) - start for start, end in spans.values())
    assert (found.residual_ns, found.least_transfer_ns) == (residual, least)
    disagree = 2 * residual > least and 20 * residual > longest
    assert found.not_attributed == ("the ends disagree" if disagree else "")
    for rank, (start, end) in {} if disagree else spans.items():
        assert found.wait_ns(rank) == sum(ns < last for ns in range(start, end))
        assert found.wait_ns(rank) + found.transfer_ns(rank) == end - start


# Matching


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.lists(st.booleans(), min_size=6, max_size=6))
def test_numbers_and_order_find_the_same(lengths, small):
    """`lengths`: how many of a job's last six collectives each rank's window holds."""

    def window(rank, length, *, with_numbers):
        found = []
        for at in range(6 - length, 6):
            size, number = 8 if small[at] else 1024, at if with_numbers else None
            found += calls((100 * at + rank, 100 * at + 50), size=size, sequence=number)
        return found

    by_number, by_order = (
        match({rank: window(rank, length, with_numbers=numbers) for rank, length in enumerate(lengths)})
        for numbers in (True, False)
    )
    assert [each.spans for each in by_number] == [
        {rank: (100 * at + rank, 100 * at + 50) for rank in range(len(lengths))}
        for at in range(6 - min(lengths), 6)
    ]
    complete = [each for each in by_order if len(each.spans) == len(lengths)]
    assert [each.spans for each in complete] == [each.spans for each in by_number]
    # Of a size of which a shorter window holds none, the other ranks' calls are given with that reason.
    assert not any(each.not_attributed for each in complete)
    assert all(each.not_attributed for each in by_order if len(each.spans) < len(lengths))


def sends(*spans, **more):
    return calls(*spans, op="send", **more)


def receives(*spans, **more):
    return calls(*spans, op="recv", receives_from=0, **more)


@pytest.mark.parametrize(
    ("first", "other", "reasons"),
    [
        (numbered((1, 0, 20)), numbered((1, 5, 20), op="allgather"), ["the ranks' operations differ"]),
        (numbered((1, 0, 20)), numbered((1, 5, 20), size=8), ["the ranks' sizes differ"]),
        (numbered((1, 0, 20)), numbered((1, 5, 31)), ["the ends disagree"]),
        (numbered((1, 0, 20)), numbered((1, 5, 20)), [""]),
        (
            numbered((1, 0, 10), (2, 20, 30), (3, 40, 50)),
            numbered((1, 0, 10), (3, 40, 50)),
            ["", "rank 1 is missing", ""],
        ),
        (calls((0, 9), op="broadcast_"), calls((10, 20), op="broadcast_"), [""]),
        (calls((0, 9), op="allgather_"), calls((10, 20), op="allgather_"), ["the ends disagree"]),
        (calls((0, 20), op="a+b", size=8), calls((9, 20), op="a+b"), [""]),
        (calls((0, 100), op="alltoall"), calls((20, 21), op="alltoall"), [""]),
        (calls((0, 19), op="alltoall"), calls((20, 90), op="alltoall"), ["the ends disagree"]),
        (sends((0, 5)), [], ["its other end is not known"]),
        (sends((0, 5), sends_to=1), [], ["rank 1 is missing"]),
        (sends((50, 55), sends_to=1), receives((10, 50)), [""]),
        (sends((50, 55), sends_to=1), receives((10, 49)), ["the ends disagree"]),
        (sends((50, 55), sends_to=1), receives((10, 60), size=8), ["the ranks' sizes differ"]),
        ([*sends((0, 5), sends_to=1), *sends((50, 55), sends_to=1)], receives((10, 60)), [""]),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_not_split_and_says_why(first, other, reasons):
    found = match({0: first, 1: other}, members={"dp": (0, 1)})
    assert [each.not_attributed for each in found] == reasons


def test_rank_alone_in_an_unknown_group_is_not_split():
    (found,) = match({0: calls((0, 20))})
    assert found.not_attributed == "no other rank of its group is known"
    (alone,) = match({0: calls((0, 20))}, members={"dp": (0,)})
    assert (alone.not_attributed, alone.wait_ns(0), alone.transfer_ns(0)) == ("", 0, 20)
    assert alone.late_rank is None
    assert lateness([alone]) is None


def test_of_ranks_that_clocks_cannot_tell_apart_none_is_late():
    for error_ns, late in ((1, 2), (5, None)):
        found = replace(collective_of({0: (0, 40), 1: (10, 40), 2: (12, 40)}), clock_error_ns=error_ns)
        assert found.late_rank == late


def test_a_receive_is_split_and_its_send_is_not():
    sent = [*sends((0, 5), sends_to=1, size=8), *sends((50, 55), sends_to=1)]
    (found,) = match({0: sent, 1: receives((10, 60))})
    assert (found.op, found.late_rank, found.not_attributed) == ("recv", 0, "")
    assert (found.wait_ns(0), found.wait_ns(1), found.transfer_ns(1)) == (None, 40, 10)
    assert (found.least_transfer_ns, found.caused_wait_ns) == (10, 40)
    assert found.bus_bandwidth == pytest.approx(1024 / 10e-9)


def test_launch_that_exchanges_waits_for_whom_it_receives_from():
    """Each of three ranks sends to the next one and receives from the one before."""
    starts, peers = {0: 0, 1: 40, 2: 10}, {0: (1, 2), 1: (2, 0), 2: (0, 1)}
    ranks = {
        rank: calls((starts[rank], 60), op="coalesced recv_+send", sends_to=to, receives_from=source)
        for rank, (to, source) in peers.items()
    }
    found = match(ranks)
    assert {each.sender: (each.late_rank, each.not_attributed) for each in found} == {
        0: (1, ""), 1: (1, ""), 2: (2, ""),
    }  # fmt: skip
    for rank, wait_ns in {0: 10, 1: 0, 2: 30}.items():
        split = waiting(rank, from_pairs([(starts[rank], 60)]), found, 0, 60).times(from_pairs([]))
        assert (split.wait_ns, split.not_attributed_ns) == (wait_ns, 0)


# One rank's step


@given(st.lists(parts, max_size=6), st.lists(st.booleans(), max_size=6), raw_pairs, raw_pairs, spans_ns)
def test_waiting_and_transfer_agree_with_a_sweep_of_every_ns(
    spans_of, not_attributed, alone, compute, step
):
    start_ns, end_ns = step
    found = [
        collective_of(spans, "why" if at < len(not_attributed) and not_attributed[at] else "")
        for at, spans in enumerate(spans_of)
    ]
    own = [(each, *each.spans[0]) for each in found if 0 in each.spans]
    comm = from_pairs([*alone, *((start, end) for _, start, end in own)])
    transfer, wait, neither = set(), set(), set()
    for each, start, end in own:
        if each.not_attributed:
            neither |= set(range(start, end))
        else:
            middle = start + each.wait_ns(0)
            wait |= set(range(start, middle))
            transfer |= set(range(middle, end))
    in_step = set(range(start_ns, end_ns))
    transfer &= in_step
    wait = (wait & in_step) - transfer - neither

    split = waiting(0, comm, found, start_ns, end_ns)
    assert ticks(split.transfer) == transfer
    assert ticks(split.wait) == wait
    assert ticks(split.comm) == ticks(comm) & in_step

    lane = from_pairs(compute)
    times, whole = split.times(lane), break_down(start_ns, end_ns, lane, comm, from_pairs([]))
    assert times.wait_ns + times.transfer_ns + times.not_attributed_ns == whole.comm_ns
    assert (
        times.exposed_wait_ns + times.exposed_transfer_ns + times.exposed_not_attributed_ns
        == whole.exposed_ns
    )
    assert times.exposed_wait_ns == len(wait - ticks(lane))


def test_lateness_counts_who_was_late_and_what_others_waited():
    spans = [
        {0: (0, 30), 1: (20, 30), 2: (10, 30)},
        {0: (40, 60), 1: (41, 60), 2: (50, 60)},
        {0: (70, 90), 1: (80, 90), 2: (70, 90)},
    ]
    late = lateness(map(collective_of, spans))
    assert (late.late_rank, late.collectives, late.wait_ns) == (1, 3, 20 + 10 + 10 + 9 + 10 + 10)
    assert (late.first.late_count, late.first.caused_wait_ns, late.first.share) == (2, 50, 2 / 3)
    assert (late.ranks[1].rank, late.ranks[1].late_count, late.ranks[1].caused_wait_ns) == (2, 1, 19)
    assert (late.of(0).late_count, late.of(0).collectives, late.of(7)) == (0, 3, None)
    for share, ranks in ((2 / 3, [1]), (0.7, [1, 2]), (1, [1, 2])):
        assert [each.rank for each in late.fewest(share)] == ranks


# Waits in another group


def made(group, spans, not_attributed=""):
    return replace(collective_of(spans, not_attributed), group=group)


# Ranks 0 and 1, and 2 and 3, share their layers (tp); 0 and 2, and 1 and 3, share their gradients (dp).
SLEEPS = [
    made("tp 0-1", {0: (40, 50), 1: (10, 50)}),  # rank 0 slept
    made("tp 2-3", {2: (10, 20), 3: (11, 20)}),
    made("dp 0-2", {0: (52, 60), 2: (22, 60)}),
    made("dp 1-3", {1: (51, 60), 3: (22, 60)}),
]


def test_waits_through_another_group_are_followed_to_the_root():
    assert passed_on_waits(SLEEPS) == {3: PassedOnWait(0, (Link(1, "tp 0-1"),))}
    alone, followed = lateness(SLEEPS), lateness(SLEEPS, {3: 0})
    counts = [(each.rank, each.late_count, each.caused_wait_ns) for each in alone.ranks[:2]]
    assert counts == [(0, 2, 60), (1, 1, 29)]
    assert (followed.first.rank, followed.first.late_count, followed.first.collectives) == (0, 3, 3)
    assert (followed.first.caused_wait_ns, followed.of(1).late_count, followed.wait_ns) == (89, 0, 90)


def test_chain_over_groups_is_named_from_late_rank_to_root():
    stages = [
        made("a", {0: (44, 60), 1: (20, 60), 2: (43, 60)}),
        made("b", {1: (61, 70), 2: (6, 70)}),
        made("c", {2: (71, 80), 3: (20, 80)}),
    ]
    chain = PassedOnWait(0, (Link(2, "b"), Link(1, "a")))
    assert passed_on_waits(stages)[2] == passed_on_waits(stages[::-1])[0] == chain


def test_waits_in_receives_are_followed_within_one_group():
    """A pipeline: rank 2 sends back late, so rank 1 does."""
    back = [
        Collective("recv", "pp", 1, {1: (10, 60), 2: (59, 60)}, sender=2),
        Collective("recv", "pp", 1, {0: (5, 70), 1: (65, 70)}, sender=1),
    ]
    assert passed_on_waits(back) == {1: PassedOnWait(2, (Link(1, "pp"),))}
    found = lateness(back, {1: 2})
    assert (found.wait_ns, found.receive_wait_ns) == (49 + 60, 49 + 60)
    assert lateness([*back, *SLEEPS]).receive_wait_ns == 49 + 60


def test_waits_in_one_group_or_not_attributed_are_not_passed_on():
    same = [made("dp", {0: (40, 50), 1: (10, 50)}), made("dp", {1: (51, 60), 2: (12, 60)})]
    other = made("tp", {3: (10, 20), 4: (10, 20)})
    assert passed_on_waits(same) == passed_on_waits([*same, other]) == {}
    unknown = [made("tp", {0: (40, 50), 1: (10, 50)}, "the ends disagree"), *SLEEPS[1:]]
    assert 2 not in passed_on_waits(unknown)
    circle = [made("a", {0: (40, 41), 1: (0, 50)}), made("b", {1: (40, 41), 0: (0, 50)})]
    assert {each.root for each in passed_on_waits(circle).values()} <= {0, 1}
