"""Rules about the whole job: where they find something, what it wins, and where they are silent."""

from functools import partial

import pytest
from msgspec.structs import replace

from overlaptop.findings.find import find
from overlaptop.findings.finding import evidence_of
from overlaptop.wire.devices import GpuLink, NodeShare
from overlaptop.wire.messages import CollectiveSpan, OwnCost
from tests.fleet.builders import GB, MS, device, info, numa, sample
from tests.fleet.pipeline import gpipe, one_forward_one_backward, seen

from .jobs import (
    MIB,
    PHASES,
    RANKS,
    Timeline,
    after,
    call,
    commanded,
    environment,
    gradients,
    healthy,
    job,
    knobs,
    names,
    the,
    timelines,
)


def by(lay, *facts, **how):
    """A job to be made."""
    return partial(timelines, lay, *facts, **how)


def step(calls=(), compute=(), copies=(), fused=(), ms=100, phases=PHASES):
    """A step that all ranks make alike."""
    return lambda rank, number: Timeline(ms, compute, tuple(calls), copies, phases, fused)


def reduces(*calls, compute=((0, 80), (90, 100)), **more):
    """All-reduces, each as start, end and MiB."""
    return step([call("allreduce_", *each) for each in calls], compute, **more)


APART = ((0, 30), (40, 50), (60, 70), (80, 100))
THREE = [(30, 40), (50, 60), (70, 80)]
apart = reduces(*THREE, compute=APART)
hidden = reduces((40, 50), (60, 70), compute=((0, 100),))
half_exposed = reduces((40, 50), (80, 90))
long = reduces((10, 90), compute=((0, 20),))
small = reduces(*((10 + 4 * at, 13 + 4 * at, 0.1) for at in range(20)), compute=((0, 20), (90, 100)))
behind = reduces(
    (60, 90), compute=((0, 60), (90, 100)),
    phases=(("forward", 0, 20), ("backward", 20, 60), ("optimizer", 90, 100)),
)  # fmt: skip
HOST = {"infos": lambda rank: {"device": "cpu"}}
TWO_HOSTS = {"infos": lambda rank: {"host": "gpu-a" if rank % 2 else "gpu-b"}}
FSDP2 = knobs(prefetch_forward=None, prefetch_backward=None)
ONE_CONNECTION = environment(CUDA_DEVICE_MAX_CONNECTIONS="1")
TIMED = environment(CUDA_DEVICE_MAX_CONNECTIONS="1", TORCH_NCCL_ENABLE_TIMING="1")
NO_P2P = environment(NCCL_P2P_DISABLE="1")


def late(rank, number):
    """Rank 1 is late, which disturbs the overlap of the other."""
    starts = (35, 55, 75) if rank else (10, 40, 60)
    calls = tuple(call("allreduce_", at, end) for at, end in zip(starts, (40, 60, 80), strict=True))
    return Timeline(100, ((0, 10), (80, 100)), calls, phases=PHASES)


# DDP


def ddp(cap_mib, sizes_mib, **flags):
    """A model with these gradients and this size of buckets."""
    usual = {"gradient_as_bucket_view": True, "find_unused_parameters": False, "static_graph": False}
    return [gradients(sizes_mib, **(usual | flags)), knobs(bucket_cap_mb=cap_mib)]


SHORT = ((0, 60), (90, 100))
ONE = (40, 50, 25)
# 2 ms and 1 ms a MiB: of 66 ms, 42 are latency.
latent = reduces(*((22 + 3 * at, 25 + 3 * at, 1) for at in range(20)), (82, 88, 4), compute=SHORT)
large_last = reduces((40, 60, 50), (70, 90, 50), compute=((0, 70), (90, 100)))
late_first = reduces((60, 68, 25), (68, 74, 25), (74, 80, 25), (80, 86, 25), compute=((0, 72), (90, 100)))
copied = reduces(ONE, copies=((84, 89),))
gap = reduces(ONE, compute=((0, 18), (22, 100)))
NO_VIEW = ddp(25, [25], gradient_as_bucket_view=False)
SEARCHING = ddp(25, [25], find_unused_parameters=True)
FIRST_HUGE = ddp(25, [1, 300, 1, 1, 1])
LATENT = ddp(1, [1] * 24)


def accumulating(*calls):
    phases = (
        ("forward", 0, 10), ("backward", 10, 45), ("forward", 45, 55), ("backward", 55, 90),
        ("optimizer", 90, 100),
    )  # fmt: skip
    return step([call(*each) for each in calls], ((0, 35), (45, 80), (90, 100)), phases=phases)


# FSDP2


def memory(*used_gb):
    used = [sample(rank, memory_used_bytes=gb * GB) for rank, gb in enumerate(used_gb)]
    return [device(0), device(1), *used]


def gathers(forward, backward=(), *, gather_ms=4, mib=64):
    """A step with gathers that begin at these times, and compute in all the time in which none runs or,
    for what begins with ``-``, also beside it.
    """
    starts = [(abs(at), at < 0) for at in (*forward, *backward)]
    compute, at = [], 0
    for start, is_hidden in starts:
        if not is_hidden:
            compute.append((at, start))
            at = start + gather_ms
    calls = [call("_allgather_base_", at, at + gather_ms, mib) for at, _ in starts]
    return step(calls, (*compute, (at, 100)), phases=(("forward", 0, 50), ("backward", 50, 100)))


LAYERS = (0.1, 10, 20, 30, 40)
SHALLOW, DEEP = (knobs(prefetch_forward=depth, prefetch_backward=1) for depth in (None, 1))
again = gathers((0.1, -10, -20, -30), (55, 65, 75, 85))
first_only = gathers((0.1, -10, -20, -30, -40), (-55, -65, -75, -85), gather_ms=8)

# Links, hosts, groups


def in_pairs(slow_ms=5.0):
    """Ranks 0 and 1 all-reduce with each other, and 2 and 3; these take ``slow_ms`` each."""

    def lay(rank, number):
        takes, begins = slow_ms if rank > 1 else 5, range(10, 60, 10)
        calls = [call("allreduce_", at, at + takes, 25, f"{10 + rank // 2} mesh_tp") for at in begins]
        busy = [(at + takes, at + 10) for at in begins]
        return Timeline(70, ((0, 10), *busy, (60, 70)), tuple(calls), phases=PHASES)

    return lay


def sampled(**rates):
    return [sample(rank, at, **rates) for at in (0, 1) for rank in (0, 1)]


BY_PCIE = {"links": (GpuLink("pcie", "", None, "PHB"),), "nvlink_count": 0}
OVER_PCIE = sampled(nvlink=(None, None), pcie=(9 * GB, 9 * GB))
NARROW = {"pcie_generation": 4, "pcie_width": 8}
FEWER = [device(0), device(1, nvlink_count=12), *sampled()]


def all_to_all(moved_mib):
    """A job in which an all-to-all, with so much on each rank, takes the place of the all-reduce."""

    def changed(detail):
        size, span_ns = moved_mib[detail.rank] * MIB, detail.comm_spans_ns
        moved = CollectiveSpan("alltoall_base_", size, "experts", False, *span_ns, detail.step)
        return replace(detail, collectives=(moved,))

    return job(healthy, changed=changed)


def reducing(sizes_of):
    """Each rank all-reduces these MiB one after the other, beside compute."""

    def lay(rank, number):
        sizes = enumerate(sizes_of(rank, number))
        calls = [call("allreduce_", 10 + 10 * at, 18 + 10 * at, mib) for at, mib in sizes]
        return Timeline(100, ((0, 100),), tuple(calls))

    return timelines(lay, ranks=3)


# Others


def costs(change, error):
    return job(
        healthy, *(OwnCost(rank, change, error, change, error, watched=True) for rank in range(RANKS))
    )


def waits(*delays_ms, cpus=(), limit_percent=None):
    """Two ranks that wait for a CPU. ``cpus``: of each rank, the set and how many they are."""
    places = [
        numa(rank, cpu_set=cpu_set, cpu_nodes=(NodeShare(0, amount),), cpu_limit_percent=limit_percent)
        for rank, (cpu_set, amount) in enumerate(cpus)
    ]
    return job(healthy, *places, ranks=2, steps=24, delayed_ns=lambda rank, _: delays_ms[rank] * MS)


EIGHT = (("0-7", 8), ("0-7", 8))

FOUND = {
    # The rule, the gain in ms (None: of any size), and words of the finding.
    "communication_bound": [
        (by(long, gradients([100])), 60, "over 4 micro-batches, all but the last in"),
        (by(small), None, "20 of 20 collectives move less than 256 KiB each"),
    ],
    "one_after_the_other": [
        (by(apart, *environment(CUDA_LAUNCH_BLOCKING="1")), 30, "unset CUDA_LAUNCH_BLOCKING"),
        (by(apart), 30, "allreduce in backward (3 a step): issue it with async_op=True"),
        (by(behind), 30, "allreduce after backward (1 a step) could begin beside backward: with"),
        (by(apart, *commanded(prefetch_forward=None)), 30, "overlaptop set prefetch_forward=2"),
    ],
    "timing_events": [(by(apart, *TIMED, FSDP2), 30, "unset TORCH_NCCL_ENABLE_TIMING")],
    "one_queue": [(by(apart, *ONE_CONNECTION, FSDP2), 30, "unset CUDA_DEVICE_MAX_CONNECTIONS")],
    "bucket_too_small": [(by(latent, *LATENT), None, "a latency of 2.00 ms each")],
    "bucket_too_large": [(by(large_last, *ddp(50, [10] * 10)), None, "smaller ones can save")],
    "late_first_bucket": [(by(late_first, *FIRST_HUGE), None, "without bucket_cap_mb")],
    "gradient_copies": [(by(copied, *NO_VIEW), 5, "gradient_as_bucket_view=True")],
    "unused_parameters": [(by(gap, *SEARCHING), 4, "find_unused_parameters=False")],
    "reduced_every_micro_step": [
        (by(accumulating(("allreduce_", 25, 45), ("allreduce_", 70, 90)), *ddp(25, [25])), 10, "no_sync()"),
        (
            by(accumulating(("_reduce_scatter_base", 25, 45), ("_reduce_scatter_base", 70, 90)), FSDP2),
            10, "set_requires_gradient_sync(False)",
        ),
    ],
    "prefetch_too_shallow": [
        # The first one is exposed whatever the depth is.
        (
            by(gathers(LAYERS), *commanded(prefetch_forward=None, prefetch_backward=1)), 16,
            "next 1 module in each, which takes up to 64.0 MiB of memory; to try it now: overlaptop set",
        ),
    ],
    "gathered_again": [
        (by(again, DEEP, *memory(20, 20)), 16, "reshard_after_forward=False): takes 256 MiB"),
    ],
    "peer_to_peer_off": [(by(half_exposed, *NO_P2P), 10, "unset NCCL_P2P_DISABLE")],
    "degraded_link": [
        (by(half_exposed, *FEWER), 10 / 3, "12 active NVLinks of 18"),
        (
            by(half_exposed, device(0, **BY_PCIE), device(1, **NARROW, **BY_PCIE), *OVER_PCIE), 7.5,
            "gen4 ×8 of gen5 ×16",
        ),
        (by(in_pairs(9), ranks=4), None, "a link among ranks 2-3 is slow"),
    ],
    "slow_between_hosts": [
        (by(half_exposed, device(0), device(1), gradients([25]), **TWO_HOSTS), None, "larger buckets"),
    ],
    "own_cost": [(lambda: costs(0.05, 0.01), None, "makes steps +5.0 % ± 1.0")],
    "uneven_experts": [
        (lambda: all_to_all((1, 1, 3, 1)), None, "24.0 MiB there, 8.00 MiB on the rank that moves least"),
    ],
    "short_cpus": [
        (lambda: waits(30, 25, cpus=EIGHT, limit_percent=150), 25, ": its container may use 1.5 of 8 CPUs"),
        (lambda: waits(30, 25, cpus=(EIGHT[0], ("8", 1))), 25, ": other threads use the 1 CPU of 1 rank"),
    ],
    "ranks_differ": [
        (
            lambda: reducing(lambda rank, _: (25, 12 if rank == 1 else 25)), None,
            "steps: more 1 allreduce_ of 12.0 MiB; fewer 1 allreduce_ of 25.0 MiB",
        ),
    ],
}  # fmt: skip
RANKS_OF = {
    "timing_events": (0, 1), "one_queue": (0, 1), "peer_to_peer_off": (0, 1), "uneven_experts": (2,),
}  # fmt: skip
"""Findings about some ranks. Others are about the whole job, or vary."""
VARY = {"degraded_link", "ranks_differ"}


@pytest.mark.parametrize(
    ("rule", "evidence", "gain_ms", "words"),
    [
        pytest.param(rule, *each, id=f"{rule} {at}")
        for rule, cases in FOUND.items()
        for at, each in enumerate(cases)
    ],
)
def test_rule_says_what_to_do_and_what_it_wins(rule, evidence, gain_ms, words):
    evidence = evidence()
    found = the(evidence, rule)
    assert words in f"{found.title} {found.measured} {found.advice}"
    assert rule in VARY or found.ranks == RANKS_OF.get(rule, ())
    if gain_ms is not None:
        assert found.gain_ns == pytest.approx(gain_ms * MS, rel=0.01)


OF_OVERLAP = {"one_after_the_other", "communication_bound"}
SILENT = {
    "all is hidden": (by(hidden, *TIMED, *FEWER, *NO_P2P, FSDP2, **TWO_HOSTS), None),
    "a rank is late": (by(late), OF_OVERLAP),
    "DDP issues collectives": (by(behind, *ddp(25, [25])), {"one_after_the_other"}),
    "the last bucket is too large": (by(large_last, *ddp(50, [10] * 10)), OF_OVERLAP),
    "buckets without a GPU": (
        by(latent, *LATENT, infos=lambda rank: {"source": "host"}), {"bucket_too_small"},
    ),
    "gradients are views": (by(copied, *ddp(25, [25])), None),
    "reduced in the last micro-batch": (
        by(accumulating(("allreduce_", 70, 90)), *ddp(25, [25])), {"reduced_every_micro_step"},
    ),
    "only the first gather is exposed": (by(first_only, SHALLOW, *memory(20, 20)), None),
    "no memory": (by(gathers((0.1, -10), (55, 65, 75, 85), mib=2000), DEEP, *memory(140, 20)), None),
    "peer to peer of CPUs": (by(half_exposed, *NO_P2P, **HOST), {"peer_to_peer_off"}),
    "tensor parallelism on one host": (by(in_pairs(), ranks=4), {"tensor_parallel_between_hosts"}),
    "own cost within the error": (lambda: costs(0.05, 0.021), {"own_cost"}),
    "one rank waits for a CPU": (lambda: waits(30, 2), {"short_cpus"}),
    "ranks differ by a step's edge": (
        lambda: reducing(lambda rank, at: (25,) * (2 + (rank == at % 3))), {"ranks_differ"},
    ),
}  # fmt: skip
"""Jobs, and the rules that find nothing in them; None: all."""


@pytest.mark.parametrize("what", SILENT)
def test_rule_is_silent_where_nothing_is_wrong(what):
    evidence, silent = SILENT[what]
    found = names(evidence())
    assert not (found if silent is None else found & silent)


@pytest.mark.parametrize("obeys", [True, False])
def test_bucket_is_set_by_command_only_if_all_ranks_obey(obeys):
    facts = [*LATENT, *commanded(bucket_cap_mb=1), info(1, control_allowed=obeys)]
    assert ("overlaptop set" in the(timelines(latent, *facts), "bucket_too_small").advice) == obeys


def test_tensor_parallelism_between_hosts_is_named_by_its_group():
    found = find(timelines(in_pairs(), ranks=4, **TWO_HOSTS))
    advice = {each.ranks: each.advice for each in found if each.rule == "tensor_parallel_between_hosts"}
    assert advice.keys() == {(0, 1), (2, 3)}
    assert all("at most 2, the ranks of one host" in each for each in advice.values())


def test_late_stages_that_change_are_no_jitter():
    assert names(evidence_of(seen(gpipe, 4, 4, steps=20))) == {"pipeline_bubble"}


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize("micro_batches", [2, 8])
def test_more_micro_batches_win_what_the_bubble_s_finding_says(schedule, micro_batches):
    few, many = (
        evidence_of(seen(schedule, 4, number, takes=lambda _, number=number: 8 / number, steps=20))
        for number in (micro_batches, 16)
    )
    won_ns, found = few.step_ns - many.step_ns, the(few, "pipeline_bubble")
    assert found.gain_ns == pytest.approx(won_ns, rel=0.15)  # transfers take as long
    assert found.ranks == (0, 1, 2, 3)
    assert found.advice.startswith("n_microbatches=16 leaves 15.8 %")


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("micro_batches", "slow"), [(4, 0), (16, 1)])
def test_equal_stages_win_what_the_finding_says(schedule, micro_batches, slow):
    def lasts(takes):
        return evidence_of(seen(schedule, 4, micro_batches, takes=takes, steps=20))

    uneven, even = lasts(lambda stage: 2 if stage == slow else 1), lasts(lambda stage: 5 / 4)
    found = [each for each in find(uneven) if each.rule == "uneven_stages"]
    won_ns = sum(each.gain_ns for each in found)
    assert won_ns == pytest.approx(uneven.step_ns - even.step_ns, rel=0.04, abs=3 * MS)
    assert all(f" of its compute away from rank {slow}, towards rank " in each.advice for each in found)


@pytest.mark.parametrize(
    ("before", "loading_ms", "named"),
    [(3, None, "uneven_stages"), (1, None, "slow_compute"), (None, 90, "data_loading")],
)
def test_only_a_stage_slow_from_the_start_has_more_layers(before, loading_ms, named):
    def stage(takes, **changes):
        return evidence_of(seen(gpipe, 4, 4, takes=lambda stage: takes if stage == 3 else 1, **changes))

    loading = {"loading_ns": (0, 0, 0, loading_ms * MS)} if loading_ms else {}
    evidence = stage(3, steps=20, **loading)
    evidence = after(stage(before, steps=9), evidence) if before else evidence
    assert names(evidence) == {"pipeline_bubble", named}
