"""Rules of which the evidence is one measured figure."""

from functools import partial

from msgspec.structs import replace

from overlaptop.findings.idle import pauses
from overlaptop.wire.messages import CollectiveSpan, OwnCost

from .jobs import RANKS, healthy, job, rules, the
from .timelines import MS, Timeline, call
from .timelines import job as timelines


def costs(change, error):
    return [OwnCost(rank, change, error, change, error, watched=True) for rank in range(RANKS)]


def test_own_cost_is_said_where_it_is_known_to_be_much():
    evidence = job(healthy, *costs(0.05, 0.01))
    own = the(evidence, "own_cost")
    step_ns = evidence.steps[0].totals[0].step_ns
    assert own.gain_ns < 0.05 * step_ns < 1.1 * own.gain_ns
    assert "+5.0 % ± 1.0" in own.title
    assert "--every" in own.advice
    for change, error in ((0.05, 0.045), (0.05, 0.021), (0.004, 0.001), (-0.1, 0.01)):
        assert ("own_cost", ()) not in rules(job(healthy, *costs(change, error)))


FUSED = ((0, 20), (40, 60))


def fuses(rank, number, fused=FUSED):
    """A step in which kernels that compute and communicate alternate with compute."""
    return Timeline(100, ((20, 40), (60, 90)), (call("allreduce_", 90, 100),), fused=fused)


def test_a_kernel_that_computes_and_communicates_is_no_pause():
    detail = timelines(fuses).steps[-1].details[0]
    assert len(pauses(detail)) == 0
    assert pauses(replace(detail, fused_spans_ns=())).tolist() == [[0, 20 * MS], [40 * MS, 60 * MS]]


def test_gpu_that_begins_with_such_a_kernel_waits_for_no_data():
    assert "data_loading" not in {rule for rule, _ in rules(timelines(fuses))}
    idle = timelines(partial(fuses, fused=FUSED[1:]))
    assert ("data_loading", ()) in rules(idle)


def all_to_all(bytes_of, op="alltoall_base_"):
    """A job in which one all-to-all takes the place of the all-reduce."""

    def changed(detail):
        start_ns, end_ns = detail.comm_spans_ns
        moved = CollectiveSpan(op, bytes_of(detail.rank), "experts", False, start_ns, end_ns, detail.step)
        return replace(detail, collectives=(moved,))

    return job(healthy, changed=changed)


def test_rank_that_moves_far_more_in_all_to_alls_is_named():
    evidence = all_to_all(lambda rank: (3 if rank == 2 else 1) << 20)
    uneven = the(evidence, "uneven_experts")
    assert uneven.ranks == (2,)
    assert "2.00 times the mean" in uneven.title
    assert uneven.measured.startswith("24.0 MiB there, 8.00 MiB on the rank that moves least")
    assert 0 < uneven.gain_ns <= evidence.steps[0].totals[2].exposed_ns / 2


def test_even_all_to_alls_and_other_operations_are_not_spoken_of():
    for evidence in (
        all_to_all(lambda rank: (10 + rank) << 20),
        all_to_all(lambda rank: None),
        all_to_all(lambda rank: (3 if rank == 2 else 1) << 20, op="allgather_"),
    ):
        assert "uneven_experts" not in {rule for rule, _ in rules(evidence)}
