"""What the tests on real GPUs share: their jobs, and the same job seen by torch.profiler."""

import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
JOBS = Path(__file__).parent / "gpu_jobs"
DDP = ROOT / "workloads" / "ddp.py"
FSDP2 = JOBS / "fsdp2.py"
NPROC = 2
SHARED = torch.cuda.device_count() < NPROC
"""Whether two ranks share a GPU; their bytes go through sockets, so that most communication is exposed."""
SCRIPTS = {
    "ddp-25-mb": (DDP, ()),
    "ddp-400-mb": (DDP, ("--bucket-cap-mb", "400")),
    "fsdp2": (FSDP2, ("--width", "1024", "--batch", "16384") if SHARED else ()),
}

one_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
two_gpus = pytest.mark.skipif(SHARED, reason="needs two GPUs")
two_ranks = pytest.mark.usefixtures("side_by_side")
each_script = pytest.mark.parametrize(("script", "words"), SCRIPTS.values(), ids=SCRIPTS)


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
