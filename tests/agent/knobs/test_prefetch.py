"""Other prefetch depths while an FSDP2 job trains: the same bits, the gathers that were asked for."""

from types import SimpleNamespace

import pytest
import torch

from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.knobs.prefetch import PrefetchKnobs, PrefetchPass


def test_ranks_train_to_the_same_bits_at_any_depth(train_twice):
    train_twice("fsdp", 2, 12, 2)


BUNDLED = """
    import sys
    from overlaptop.workloads import fsdp, job
    sys.argv[1:] = (
        f"--device cpu --deterministic --layers 2 --width 64 --seq 16 --batch 2 --steps {sys.argv[1]} "
        "--data-ms 80 --prefetch-backward 2 --losses losses"
    ).split()
    job.main(fsdp.__file__, fsdp.run)
"""


@pytest.mark.slow
def test_bundled_job_takes_depths_and_loses_no_bit(start, watch, losses_alone):
    job = start(training=BUNDLED)
    dashboard = watch()
    known = dashboard.until(lambda snapshot: len(snapshot.knobs) == 2 and snapshot.knobs)
    knobs = forward, backward = [each.knob for each in known]
    assert [(each.name, each.value, each.least, each.most, each.refusal) for each in knobs] == [
        ("prefetch_forward", 0, 0, 2, ""), ("prefetch_backward", 2, 0, 2, ""),
    ]  # fmt: skip
    dashboard.until_it_trains(5)
    for knob, value, old, new in ((forward, 2, "0", "2"), (backward, 1, "2", "1")):
        done = dashboard.set(knob, value)
        assert (done.state, done.old, done.new) == ("changed", old, new), done
        dashboard.knob(done.knob, done.new)
    dashboard.goes_on(10)
    job.close()
    assert job.losses() == losses_alone(job, training=BUNDLED.replace("--data-ms 80", "--data-ms 0"))


REFUSALS = """
    import sys
    from types import SimpleNamespace
    from unittest import mock
    import torch, torch.distributed as dist
    from torch import nn
    from overlaptop.agent.isolation.fault_barrier import FaultBarrier
    from overlaptop.agent.knobs.prefetch import PrefetchKnobs

    dist.init_process_group("gloo")
    knobs = PrefetchKnobs(FaultBarrier(lambda level, text: print(text)))
    knobs.install()  # before the script imports FSDP2

    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    def refused(why=""):
        assert knobs.objection() == why, knobs.objection()
        assert [knob.refusal for knob in knobs.knobs()] == [why] * bool(knobs.alive()) * 2

    refused("the job has made no FSDP2 module since the agent was there")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    refused()
    with mock.patch.dict(sys.modules, {"torch._dynamo.config": SimpleNamespace(skip_fsdp_hooks=False)}):
        refused("FSDP2's hooks are compiled (skip_fsdp_hooks is off), and compiled code keeps its order")
    kept = FSDPState._root_pre_forward
    del FSDPState._root_pre_forward
    lacks = "'FSDPState' object has no attribute '_root_pre_forward'"
    refused(f"its FSDP2 modules are not as expected: {lacks}")
    FSDPState._root_pre_forward = kept
    action = knobs.action("prefetch_forward", 1)
    assert action.refusal() == ""
    assert action.boundary(7)
    assert FSDPState._root_pre_forward is not kept
    try:
        action.boundary(8)
        raise AssertionError
    except RuntimeError as fault:
        assert str(fault) == "none of its FSDP2 modules made a forward pass"
    action.abandon()
    assert FSDPState._root_pre_forward is kept
    dist.destroy_process_group()
"""


def test_refusal_has_a_reason_and_leaves_no_watch(run_ranks):
    job = run_ranks(REFUSALS, nproc=1, agent=False, listen=False)
    assert job.codes == [0], job.errs


def unit(weights):
    parameters = [SimpleNamespace(param_dtype=torch.bfloat16, _orig_size=torch.Size([weights]))]
    groups = [SimpleNamespace(fsdp_params=parameters)]
    return SimpleNamespace(_fsdp_param_groups=groups, _device=torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("free", "reserved", "peak", "why"),
    [
        (3_000, 0, 0, ""),
        (1_000, 6_000, 4_000, ""),
        (2_999, 0, 0, "prefetch_forward 3 would take 0.0 GB more on its GPU, where 0.0 GB are free"),
    ],
)
def test_a_depth_for_which_the_gpu_lacks_memory_is_refused(monkeypatch, free, reserved, peak, why):
    knobs = PrefetchKnobs(FaultBarrier(lambda level, text: None))
    monkeypatch.setattr(knobs, "alive", lambda: [unit(each) for each in (100, 500, 700, 300)])
    monkeypatch.setattr(knobs, "objection", lambda: "")
    monkeypatch.setattr(PrefetchPass, "depth", 0)
    for name, value in (
        ("is_initialized", True), ("mem_get_info", (free, 1 << 40)),
        ("memory_reserved", reserved), ("max_memory_allocated", peak),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    for depth, refusal in ((3, why), (0, ""), (None, "")):
        assert knobs.action("prefetch_forward", depth).refusal() == refusal
