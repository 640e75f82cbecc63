"""Matching a collective over its ranks, and telling waiting from transfer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.timeline.arrivals import Collective, Part, lateness, waiting
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
    made = tuple(Part(rank, *span) for rank, span in sorted(spans.items()))
    return Collective("allreduce", "dp", 1024, made, not_attributed)


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


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("allreduce", 1.5), ("_allgather_base", 0.75), ("_reduce_scatter_base", 0.75), ("all_to_all", 0.75),
        ("broadcast", 1.0), ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1.5), ("gather", None),
        ("barrier", None),
    ],
)  # fmt: skip
def test_bus_bandwidth_has_the_factors_of_nccl_tests(op, factor):
    found = Collective(op, "", 4096, (*(Part(rank, 0, 1100) for rank in range(3)), Part(3, 1000, 1100)))
    expected = None if factor is None else pytest.approx(factor * 4096 / 100e-9)
    assert found.bus_bandwidth == expected


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


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("broadcast_", ""), ("reduce_", ""), ("gather_", ""), ("scatter_", ""),
        ("_reduce_scatter_base_", "the ends disagree"), ("_allgather_base_", "the ends disagree"),
    ],
)  # fmt: skip
def test_ranks_may_leave_early_only_where_there_is_a_root(op, why):
    (found,) = match(
        {rank: calls(span, op=op) for rank, span in enumerate(((0, 20), (0, 120), (100, 120)))}
    )
    assert found.not_attributed == why
    if not why:
        assert [(found.wait_ns(rank), found.transfer_ns(rank)) for rank in range(3)] == [
            (20, 0), (100, 20), (0, 20)
        ]  # fmt: skip
        assert (found.late_rank, found.least_transfer_ns, found.residual_ns) == (2, 20, 0)


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
    assert [each.parts for each in by_number] == [
        tuple(Part(rank, 100 * at + rank, 100 * at + 50) for rank in range(len(lengths)))
        for at in range(6 - min(lengths), 6)
    ]
    complete = [each for each in by_order if len(each.parts) == len(lengths)]
    assert [each.parts for each in complete] == [each.parts for each in by_number]
    # Of a size of which a shorter window holds none, the other ranks' calls are given with that reason.
    assert not any(each.not_attributed for each in complete)
    assert all(each.not_attributed for each in by_order if len(each.parts) < len(lengths))


def test_ops_and_sizes_are_paired_apart():
    ranks = {
        rank: [*calls((0, 10 + rank)), *calls((20, 30), size=8), *calls((40, 50), op="allgather")]
        for rank in (0, 1)
    }
    found = match(ranks)
    assert [(each.op, each.bytes) for each in found] == [
        ("allreduce", 1024), ("allreduce", 8), ("allgather", 1024)
    ]  # fmt: skip
    assert not any(each.not_attributed for each in found)


def test_number_that_one_rank_lacks_has_its_reason():
    found = match({0: numbered((1, 0, 10), (2, 20, 30), (3, 40, 50)), 1: numbered((1, 0, 10), (3, 40, 50))})
    assert [each.not_attributed for each in found] == ["", "rank 1 is missing", ""]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (numbered((1, 5, 20), op="allgather"), "the ranks' operations differ"),
        (numbered((1, 5, 20), size=8), "the ranks' sizes differ"),
        (numbered((1, 5, 31)), "the ends disagree"),
        (numbered((1, 5, 20)), ""),
        ([], "rank 1 is missing"),
    ],
)
def test_what_does_not_fit_together_is_not_split_and_says_why(other, why):
    (found,) = match({0: numbered((1, 0, 20)), 1: other}, members={"dp": (0, 1)})
    assert found.not_attributed == why


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("coalesced allreduce_+broadcast_", "the ranks' sizes differ"),
        ("coalesced _allgather_base_", "the ranks' sizes differ"),
        ("coalesced allreduce_+gather_", ""),
        ("coalesced allreduce_+alltoall_", ""),
    ],
)
def test_operations_in_one_have_the_same_size_unless_uneven(op, why):
    (found,) = match({rank: numbered((1, 9 * rank, 20), op=op, size=8 + rank) for rank in (0, 1)})
    assert found.not_attributed == why


def test_rank_alone_in_an_unknown_group_is_not_split():
    (found,) = match({0: calls((0, 20))})
    assert found.not_attributed == "no other rank of its group is known"
    (alone,) = match({0: calls((0, 20))}, members={"dp": (0,)})
    assert (alone.not_attributed, alone.wait_ns(0), alone.transfer_ns(0)) == ("", 0, 20)
    assert alone.late_rank is None
    assert lateness([alone]) is None


@pytest.mark.parametrize(("error_ns", "why"), [(10, ""), (11, "the clocks are too uncertain")])
def test_wait_that_clocks_cannot_tell_from_none_is_not_split(error_ns, why):
    ranks = {rank: [*calls((10 * rank, 40)), *calls((50, 90), group="tp")] for rank in (0, 1)}
    assert [each.not_attributed for each in match(ranks, clock_error_ns={"dp": error_ns})] == [why, ""]
    ends = {0: calls((10, 40), op="send", sends_to=1), 1: calls((0, 40), op="recv", receives_from=0)}
    assert [each.not_attributed for each in match(ends, clock_error_ns={"dp": error_ns})] == [why]


@pytest.mark.parametrize(("error_ns", "late"), [(1, 2), (5, None)])
def test_of_ranks_that_clocks_cannot_tell_apart_none_is_late(error_ns, late):
    ranks = {rank: calls((start, 40)) for rank, start in enumerate((0, 10, 12))}
    (found,) = match(ranks, clock_error_ns={"dp": error_ns})
    assert (found.not_attributed, found.late_rank) == ("", late)


def test_uneven_all_to_all_is_timed_to_its_last_end():
    (found,) = match(
        {0: calls((0, 100), op="alltoallv", size=64), 1: calls((20, 90), op="alltoallv", size=8)}
    )
    assert (found.not_attributed, found.bytes, found.least_transfer_ns) == ("", None, 80)
    assert found.bus_bandwidth is None


def test_a_receive_is_split_and_its_send_is_not():
    sends = calls((50, 55), op="send", sends_to=1)
    receives = calls((10, 60), op="recv", receives_from=0)
    (found,) = match({0: sends, 1: receives})
    assert (found.op, found.late_rank, found.not_attributed) == ("recv", 0, "")
    assert (found.wait_ns(0), found.wait_ns(1), found.transfer_ns(1)) == (None, 40, 10)
    assert (found.least_transfer_ns, found.caused_wait_ns) == (10, 40)
    assert found.bus_bandwidth == pytest.approx(1024 / 10e-9)


def test_sends_are_paired_in_order_from_the_end():
    sends = [*calls((0, 5), op="send", sends_to=1, size=8), *calls((50, 55), op="send", sends_to=1)]
    receives = [*calls((10, 60), op="recv", receives_from=0)]
    (found,) = match({0: sends, 1: receives})
    assert (found.parts[0].start_ns, found.wait_ns(1), found.not_attributed) == (50, 40, "")


@pytest.mark.parametrize(
    ("receive", "size", "why"),
    [((10, 60), 8, "the ranks' sizes differ"), ((10, 49), 1024, "the ends disagree"), ((10, 50), 1024, "")],
)
def test_a_receive_that_cannot_be_of_this_send_is_not_split(receive, size, why):
    sends = calls((50, 55), op="send", sends_to=1)
    (found,) = match({0: sends, 1: calls(receive, op="recv", receives_from=0, size=size)})
    assert found.not_attributed == why


def ring(starts_ns, end_ns, op="coalesced recv_+send"):
    """Each rank sends to the next one and receives from the one before, in one launch."""
    ranks = len(starts_ns)
    return {
        rank: calls((start, end_ns), op=op, sends_to=(rank + 1) % ranks, receives_from=(rank - 1) % ranks)
        for rank, start in enumerate(starts_ns)
    }


def test_launch_that_exchanges_waits_for_whom_it_receives_from():
    ranks = ring((0, 40, 10), 60)
    found = match(ranks)
    assert sorted((each.sender, each.not_attributed) for each in found) == [(0, ""), (1, ""), (2, "")]
    assert {each.sender: each.late_rank for each in found} == {0: 1, 1: 1, 2: 2}
    waits = {}
    for rank, (call,) in ranks.items():
        own = from_pairs([(call.start_ns, call.end_ns)])
        split = waiting(rank, own, found, 0, 60).times(from_pairs([]))
        assert split.not_attributed_ns == 0
        waits[rank] = split.wait_ns
    assert waits == {0: 10, 1: 0, 2: 30}


def test_rank_that_sends_while_it_receives_waits_for_its_sender():
    own = [*calls((0, 58), op="send", sends_to=1), *calls((1, 60), op="recv", receives_from=1)]
    other = [*calls((50, 60), op="send", sends_to=0), *calls((52, 58), op="recv", receives_from=0)]
    found = match({0: own, 1: other})
    split = waiting(0, from_pairs([(0, 60)]), found, 0, 60).times(from_pairs([]))
    assert (split.wait_ns, split.transfer_ns, split.not_attributed_ns) == (49, 10, 1)


def test_launch_that_receives_from_several_ranks_is_not_split():
    several = calls((0, 60), op="coalesced recv_+send", sends_to=2)
    found = match({0: several, 2: calls((0, 70), op="recv_", receives_from=0)})
    assert [(each.sender, each.wait_ns(0), each.wait_ns(2)) for each in found] == [(0, None, 0)]
    split = waiting(0, from_pairs([(0, 60)]), found, 0, 60).times(from_pairs([]))
    assert (split.wait_ns, split.transfer_ns, split.not_attributed_ns) == (0, 0, 60)


@pytest.mark.parametrize(("end", "why"), [(21, ""), (19, "the ends disagree")])
def test_no_end_of_an_all_to_all_lies_before_the_last_arrival(end, why):
    spans = ((0, 100), (20, 90), (0, end))
    (found,) = match({rank: calls(span, op="alltoall") for rank, span in enumerate(spans)})
    assert (found.not_attributed, found.least_transfer_ns) == (why, 80)


@pytest.mark.parametrize(("peer", "why"), [(None, "its other end is not known"), (1, "rank 1 is missing")])
def test_a_send_without_its_receive_is_not_split(peer, why):
    (found,) = match({0: calls((0, 5), op="send", sends_to=peer)})
    assert found.not_attributed == why


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
    own = [(each, each.part(0)) for each in found if each.part(0)]
    comm = from_pairs([*alone, *((part.start_ns, part.end_ns) for _, part in own)])
    transfer, wait, neither = set(), set(), set()
    for each, part in own:
        if each.not_attributed:
            neither |= set(range(part.start_ns, part.end_ns))
        else:
            middle = part.start_ns + each.wait_ns(0)
            wait |= set(range(part.start_ns, middle))
            transfer |= set(range(middle, part.end_ns))
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


# A window


THREE_RANKS = {
    0: calls((0, 30), (40, 60), (70, 90)),
    1: calls((20, 30), (41, 60), (80, 90)),
    2: calls((10, 30), (50, 60), (70, 90)),
}


def test_lateness_counts_who_was_late_and_what_others_waited():
    late = lateness(match(THREE_RANKS))
    assert (late.late_rank, late.collectives, late.wait_ns) == (1, 3, 20 + 10 + 10 + 9 + 10 + 10)
    assert (late.first.late_count, late.first.caused_wait_ns, late.first.share) == (2, 50, 2 / 3)
    assert (late.ranks[1].rank, late.ranks[1].late_count, late.ranks[1].caused_wait_ns) == (2, 1, 19)
    assert (late.of(0).late_count, late.of(0).collectives, late.of(7)) == (0, 3, None)


@pytest.mark.parametrize(("share", "ranks"), [(0.6, [1]), (2 / 3, [1]), (0.7, [1, 2]), (1, [1, 2])])
def test_few_ranks_may_share_the_lateness(share, ranks):
    assert [each.rank for each in lateness(match(THREE_RANKS)).fewest(share)] == ranks


def test_nobody_is_late_where_all_arrive_together():
    together = lateness(match({rank: calls((0, 10)) for rank in (0, 1)}))
    assert (together.late_rank, together.wait_ns) == (None, 0)
    assert together.fewest(0.9) == ()
    assert lateness([collective_of({0: (0, 10), 1: (5, 10)}, "why")]) is None
