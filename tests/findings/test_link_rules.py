"""Links and hosts: one that does less than its like, and groups that reach over hosts."""

import pytest

from overlaptop.findings.exposure import exposure
from overlaptop.findings.find import find
from overlaptop.wire.devices import GpuLink
from tests.fleet.builders import GB, MS, device, sample

from .jobs import rules
from .timelines import PHASES, Timeline, call, environment, gradients, job

PAIRS = {0: "10 mesh_tp", 1: "10 mesh_tp", 2: "11 mesh_tp", 3: "11 mesh_tp"}


def the(evidence, rule):
    (found,) = [each for each in find(evidence) if each.rule == rule]
    assert 0 < found.gain_ns <= exposure(evidence).exposed_transfer_ns
    return found


def exposed(rank, number):
    """Two all-reduces, one of them exposed."""
    calls = (call("allreduce_", 40, 50), call("allreduce_", 80, 90))
    return Timeline(100, ((0, 80), (90, 100)), calls, phases=PHASES)


def hidden(rank, number):
    calls = (call("allreduce_", 40, 50), call("allreduce_", 60, 70))
    return Timeline(100, ((0, 100),), calls, phases=PHASES)


def in_pairs(slow_ms=5.0, group=PAIRS.get, **sizes):
    """Ranks 0 and 1 all-reduce with each other, and 2 and 3; these take ``slow_ms`` each."""

    def lay(rank, number):
        takes = slow_ms if rank > 1 else 5
        calls = [call("allreduce_", 10 * at, 10 * at + takes, 25, group(rank)) for at in range(1, 6)]
        busy = [(10 * at + takes, 10 * at + 10) for at in range(1, 6)]
        return Timeline(70, ((0, 10), *busy, (60, 70)), tuple(calls), phases=PHASES)

    return lay


def two_hosts(rank):
    return {"host": "gpu-a" if rank % 2 else "gpu-b"}


@pytest.mark.parametrize(
    ("weak", "gain_ms", "says"),
    [
        (device(1, nvlink_count=12), 10 / 3, "12 active NVLinks of 18"),
        (device(1, nvlink_count=18), None, ""),
        (device(1, nvlink_count=12, gpu_name="another"), None, ""),
    ],
)
def test_a_gpu_with_fewer_nvlinks_than_its_like_is_named(weak, gain_ms, says):
    samples = [sample(rank, at) for at in (0, 1) for rank in (0, 1)]
    evidence = job(exposed, device(0), weak, *samples)
    if gain_ms is None:
        assert ("degraded_link", (1,)) not in rules(evidence)
        return
    found = the(evidence, "degraded_link")
    assert (found.ranks, says in found.title) == ((1,), True)
    assert found.gain_ns == pytest.approx(gain_ms * MS, rel=0.01)
    assert find(job(hidden, device(0), weak, *samples)) == ()


def test_pcie_turned_down_is_named_where_collectives_use_it():
    rates = {"nvlink": (None, None), "pcie": (9 * GB, 9 * GB)}
    samples = [sample(rank, at, **rates) for at in (0, 1) for rank in (0, 1)]
    by_pcie = {"links": (GpuLink("pcie", "", None, "PHB"),), "nvlink_count": 0}
    narrow = device(1, pcie_generation=4, pcie_width=8, **by_pcie)
    found = the(job(exposed, device(0, **by_pcie), narrow, *samples), "degraded_link")
    assert (found.ranks, "gen4 ×8 of gen5 ×16" in found.title) == ((1,), True)
    assert found.gain_ns == 7.5 * MS
    over_nvlink = device(1, pcie_generation=4, pcie_width=8)
    assert ("degraded_link", (1,)) not in rules(job(exposed, device(0), over_nvlink, *samples))


def test_peer_to_peer_off_is_told_where_transfers_are_exposed():
    off = environment(NCCL_P2P_DISABLE="1")
    found = the(job(exposed, *off), "peer_to_peer_off")
    assert (found.ranks, found.advice.startswith("unset NCCL_P2P_DISABLE")) == ((0, 1), True)
    assert find(job(hidden, *off)) == ()
    on_cpus = job(exposed, *off, infos=lambda rank: {"device": "cpu"})
    for evidence in (on_cpus, job(exposed, *environment(NCCL_P2P_DISABLE="0"))):
        assert ("peer_to_peer_off", (0, 1)) not in rules(evidence)


def test_a_group_slower_than_its_like_has_a_slow_link():
    found = the(job(in_pairs(slow_ms=9), ranks=4), "degraded_link")
    assert found.ranks == (2, 3)
    assert ("degraded_link", (2, 3)) not in rules(job(in_pairs(slow_ms=6), ranks=4))


def test_collectives_between_hosts_far_below_nvlink_are_told():
    evidence = job(exposed, device(0), device(1), gradients([25]), infos=two_hosts)
    found = the(evidence, "slow_between_hosts")
    assert "its NVLinks can move 450 GB/s" in found.measured
    assert "larger buckets" in found.advice
    off = environment(NCCL_IB_DISABLE="1")
    assert the(job(exposed, device(0), *off, infos=two_hosts), "slow_between_hosts").advice.startswith(
        "unset"
    )
    assert ("slow_between_hosts", ()) not in rules(job(exposed, device(0), device(1)))
    assert ("slow_between_hosts", ()) not in rules(job(exposed, infos=two_hosts))
    assert find(job(hidden, device(0), infos=two_hosts)) == ()


def test_tensor_parallelism_between_hosts_is_named_by_its_group():
    evidence = job(in_pairs(), ranks=4, infos=two_hosts)
    found = {each.ranks: each for each in find(evidence) if each.rule == "tensor_parallel_between_hosts"}
    assert found.keys() == {(0, 1), (2, 3)}
    assert "at most 2, the ranks of one host" in found[0, 1].advice
    name = "tensor_parallel_between_hosts"
    assert not {rule for rule, _ in rules(job(in_pairs(), ranks=4))} & {name}
    data = job(in_pairs(group=lambda rank: f"{rank // 2} mesh_dp"), ranks=4, infos=two_hosts)
    assert not {rule for rule, _ in rules(data)} & {name}
