"""Telemetry on real GPUs, beside loops that know what they moved (make test-gpu)."""

import json
from itertools import pairwise
from statistics import fmean

import pytest
import torch

from overlaptop.agent.telemetry.telemetry import PERIOD_S
from overlaptop.wire.devices import DeviceFacts, DeviceSample, MachineFacts, NumaFacts
from tests.agent.sources.gpu import DDP, JOBS, one_gpu, two_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

STRETCHES = ("nvlink_tx", "nvlink_rx", "pcie_rx", "pcie_tx")
QUIET_SHARE = 0.02  # Of what a link carries: what the other one may carry meanwhile


@two_gpus
def test_rates_are_the_bytes_that_a_loop_moved(run_ranks) -> None:
    job = run_ranks(JOBS / "links.py", nproc=1)
    assert job.codes == [0], job.errs
    told = json.loads(job.outs[0].splitlines()[-1])
    samples, facts = job.of(DeviceSample), job.of(DeviceFacts)[-1]
    for name in STRETCHES:
        part = told[name]
        moved = part["bytes"] / (part["end_ns"] - part["begin_ns"]) * 1e9
        # A sample's rates are of the time since the one before.
        within = [
            late
            for early, late in pairwise(samples)
            if part["begin_ns"] <= early.at_ns and late.at_ns <= part["end_ns"]
        ]
        assert len(within) >= 8, (name, len(within))
        seen = {
            field: fmean(getattr(each, f"{field}_bytes_per_s") for each in within) for field in STRETCHES
        }
        print(f"\n{name}: {moved}, seen {seen}; {facts}")
        assert seen[name] == pytest.approx(moved, rel=0.05)
        assert moved < (facts.nvlink_peak_bytes_per_s if "nvlink" in name else facts.pcie_peak_bytes_per_s)
        assert all(seen[other] < QUIET_SHARE * moved for other in STRETCHES if other[:4] != name[:4])


@one_gpu
def test_the_facts_and_samples_of_a_real_gpu_are_whole(run_ranks) -> None:
    job = run_ranks(DDP, nproc=1, arguments=("--steps", "120"))
    assert job.codes == [0], job.errs
    (machine,) = job.of(MachineFacts)
    facts = job.of(DeviceFacts)[-1]
    samples = job.of(DeviceSample)
    print(f"\n{machine}\n{facts}\n{job.of(NumaFacts)[-1]}\n{samples[-1]}")
    assert facts.gpu_uuid == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    assert facts.gpu_name == torch.cuda.get_device_name(0)
    assert facts.gpu_uuid in [gpu.uuid for gpu in machine.gpus]
    assert facts.memory_total_bytes >= torch.cuda.get_device_properties(0).total_memory
    assert 0 < facts.pcie_generation <= facts.pcie_generation_max
    apart_s = [(late.at_ns - early.at_ns) / 1e9 for early, late in pairwise(samples)]
    assert sorted(apart_s)[len(apart_s) // 2] == pytest.approx(PERIOD_S, abs=0.1)
    busy = samples[-2]
    assert 0 < busy.memory_used_bytes < facts.memory_total_bytes
    assert busy.power_mw <= 1.1 * facts.power_limit_mw
    assert 0 < busy.sm_clock_hz <= facts.sm_clock_max_hz
    assert busy.throttle_reasons is not None
    if torch.cuda.get_device_capability() >= (9, 0):
        assert busy.sm_activity > 0.5
        assert busy.tensor_activity > 0.05
        assert 0.05 < busy.dram_activity <= 1
    assert job.notices() == []
