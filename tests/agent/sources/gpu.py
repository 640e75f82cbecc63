"""What the tests on real GPUs share: their jobs, and the same job seen by torch.profiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
JOBS = Path(__file__).parent / "gpu_jobs"
DDP = ROOT / "workloads" / "ddp.py"
FSDP2 = ROOT / "benchmarks" / "jobs" / "fsdp2.py"
NPROC = 2

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < NPROC, reason="an all-reduce needs two GPUs")
one_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def profile(run_ranks, windows, script, *words, options=None):
    """Run a script with torch.profiler over some `windows` of its steps (first, length, how many): the job,
    and what the profiler saw. Without `options` there is no agent.
    """
    job = run_ranks(
        JOBS / "profiled.py",
        nproc=NPROC,
        agent=options is not None,
        options=options or (),
        arguments=(*map(str, windows), str(script), *words),
    )
    assert job.codes == [0] * NPROC, job.errs
    return job, json.loads(next(line for line in job.outs[0].splitlines() if line.startswith("{")))
