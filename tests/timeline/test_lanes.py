import shlex
from pathlib import Path

import pytest

from overlaptop.timeline.lanes import Lane, LaneRules, describe_look_alikes, parse_rule

RECORDED = Path(__file__).with_name("recorded_kernels.txt").read_text().splitlines()
"""Every kernel of four jobs on H200s (DDP, DDP with a straggler, FSDP2, tensor parallel)."""

CASES = [
    line.split(" ", maxsplit=1)
    for line in Path(__file__).with_name("kernels.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("lane", "name"), [*CASES, ("compute", "")])
def test_a_kernel_is_what_the_identifiers_in_its_name_begin_with(lane, name):
    assert LaneRules().lane(name, "kernel") == lane


def test_exactly_nccls_kernels_of_recorded_jobs_communicate():
    rules = LaneRules()
    found = {name for name in RECORDED if rules.lane(name, "kernel") is Lane.COMM}
    assert found == {name for name in RECORDED if name.startswith("nccl")}
    assert 0 < len(found) < len(RECORDED)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("dispatch_kernel", "dispatch_kernel"),
        ("void pplx::moe_dispatch_tokens<8>(int*)", "moe_dispatch_tokens"),
        ("void acme::expertsCombine<float>(float*)", "expertsCombine"),
        ("_ZN4acme11send_kernelEPf", "send_kernel"),
    ],
)
def test_compute_named_like_communication_is_told_with_its_rule(name, part):
    assert LaneRules().look_alike(name) == part
    words = describe_look_alikes([part])
    (rule,) = shlex.split(words.partition("--lane ")[2])
    assert LaneRules([parse_rule(rule)]).lane(name, "kernel") is Lane.COMM
    assert not LaneRules([parse_rule(rule)]).look_alike(name)
    assert not LaneRules([parse_rule(f"compute={part}")]).look_alike(name)


def test_nothing_known_looks_like_communication():
    rules = LaneRules()
    assert not any(map(rules.look_alike, [*RECORDED, *(name for _, name in CASES)]))


def test_copies_are_copies_except_those_to_another_gpu():
    lanes = {
        kind: LaneRules().lane("anything", kind) for kind in ("memcpy", "memset", "peer_memcpy", "kernel")
    }
    assert list(lanes.values()) == [Lane.COPY, Lane.COPY, Lane.COMM, Lane.COMPUTE]


def test_users_rules_come_first_and_the_first_match_wins():
    words = ("comm=^my_allreduce", "compute=my_", "copy=ncclDevKernel_Broadcast", "comm=HtoD", "copy=a=b")
    rules = LaneRules(map(parse_rule, words))
    assert rules.lane("my_allreduce_v2", "kernel") is Lane.COMM
    assert rules.lane("a=b", "kernel") is Lane.COPY
    assert rules.lane("ncclDevKernel_my_", "kernel") is Lane.COMPUTE
    assert rules.lane("ncclDevKernel_Broadcast_RING_LL", "kernel") is Lane.COPY
    assert rules.lane("ncclDevKernel_AllGather_RING_LL", "kernel") is Lane.COMM
    assert rules.lane("Memcpy HtoD (Pinned -> Device)", "memcpy") is Lane.COMM


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("my_allreduce", "LANE=REGEX"),
        ("comm=", "LANE=REGEX"),
        ("", "LANE=REGEX"),
        ("network=x", "unknown lane 'network'.*compute, comm, copy, fused"),
        ("comm=(", "not a regular expression"),
    ],
)
def test_a_rule_that_is_none_is_refused_in_one_line(text, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_rule(text)
    assert "\n" not in str(caught.value)
