"""Bytes on the links: the formulas against rings that are played through, chunk by chunk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.timeline.collectives import LinkBytes, link_bytes, sum_links_where_known

groups = st.integers(2, 16)
chunks = st.integers(0, 1 << 30)

ALL_REDUCE = ("allreduce_", "allreduce_coalesced_", "all_reduce", "allreduce", "coalesced allreduce_")
ALL_GATHER = (
    "allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
    "all_gather", "_all_gather_base", "all_gather_into_tensor_coalesced", "_allgather_base",
)  # fmt: skip
REDUCE_SCATTER = (
    "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced", "reduce_scatter",
)  # fmt: skip
ALL_TO_ALL = ("alltoall_", "alltoall_base_", "all_to_all", "all_to_allv")
ONE_TO_ALL = ("broadcast_", "broadcast", "_broadcast_oop", "reduce_", "reduce", "_reduce_oop")
NOTHING = ("barrier", "monitored_barrier_", "all_reduce_barrier")
SENDS, RECEIVES = ("send",), ("recv", "recv_", "recv_any_source_")
UNTOLD = ("gather_", "gather", "scatter_", "scatter", "ncclDevKernel_Generic_4", "coalesced recv+send", "")


def ring(nodes, per_node, rounds, chunk):
    """What each rank of a ring sends within its node and to the next node, in the mean of the node."""
    ranks = nodes * per_node
    leaves = [rank // per_node != (rank + 1) % ranks // per_node for rank in range(ranks)]
    between = sum(leaves) * rounds * chunk // ranks
    own = rounds * chunk - between
    return LinkBytes(own, own, between, between)


@given(st.integers(1, 9), st.integers(1, 9), chunks)
def test_reductions_and_gathers_are_rounds_of_a_ring(nodes, per_node, chunk):
    n = nodes * per_node
    for ops, rounds in ((ALL_REDUCE, 2 * (n - 1)), (ALL_GATHER + REDUCE_SCATTER, n - 1)):
        for op in ops:
            assert ring(nodes, per_node, rounds, n * chunk) == link_bytes(op, n * n * chunk, n, nodes)


def chain(n, size):
    """The first rank's bytes go from each to the next."""
    return [LinkBytes(size * (rank < n - 1), size * (rank > 0)) for rank in range(n)]


@given(groups, chunks)
def test_a_broadcast_and_a_reduce_are_the_mean_of_a_chain(n, part):
    size = n * part
    whole = sum_links_where_known(chain(n, size))
    assert sum_links_where_known([whole, None]) is None
    for op in ONE_TO_ALL:
        assert sum_links_where_known([link_bytes(op, size, n)] * n) == whole


@given(groups, chunks)
def test_point_to_point_goes_one_way(n, size):
    assert {link_bytes(op, size, n) for op in SENDS} == {LinkBytes(size, 0)}
    assert {link_bytes(op, size, n) for op in RECEIVES} == {LinkBytes(0, size)}


@pytest.mark.parametrize(
    ("ops", "size", "ranks", "expected"),
    [
        (NOTHING, 4, 8, LinkBytes(0, 0)),
        (UNTOLD, 1024, 8, None),
        (ALL_REDUCE, None, 8, None),
        (ALL_REDUCE, 1024, None, None),
        ((*ALL_REDUCE, *SENDS, *UNTOLD), None, 1, LinkBytes(0, 0)),
    ],
)
def test_what_moves_nothing_is_told_from_what_is_unknown(ops, size, ranks, expected):
    assert {link_bytes(op, size, ranks) for op in ops} == {expected}


@given(st.integers(1, 9), st.integers(1, 9), chunks)
def test_other_operations_between_nodes(nodes, per_node, part):
    n = nodes * per_node
    for op in ALL_TO_ALL:
        own, others = (per_node - 1) * part, (n - per_node) * part
        assert link_bytes(op, n * part, n, nodes) == LinkBytes(own, own, others, others)
    for op in ONE_TO_ALL:
        own, others = (n - nodes) * part, (nodes - 1) * part
        assert link_bytes(op, n * part, n, nodes) == LinkBytes(own, own, others, others)
    for op in SENDS + RECEIVES if nodes > 1 else ():
        assert link_bytes(op, part, n, nodes) is None
