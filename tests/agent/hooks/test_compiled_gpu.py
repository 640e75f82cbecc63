"""Compiled DDP jobs on real GPUs, by the sources that GPUs have (make test-gpu)."""

from pathlib import Path

import pytest
import torch

from tests.agent.conftest import Run
from tests.agent.sources.gpu import one_gpu

from .test_compiled import JOB, compare

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

NPROC = min(2, torch.cuda.device_count())
WAYS = ("wrapped", "method", "step")


@one_gpu
@pytest.mark.parametrize("source", ["kernels", "events"])
def test_a_compiled_job_on_gpus_trains_as_without_the_agent_and_is_measured(
    run_ranks: Run, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inductor times kernels of equal use but other rounding, and keeps the fastest for the next job.
    monkeypatch.setenv("TORCHINDUCTOR_DETERMINISTIC", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    options = ("--source", source, *(("--every", "1") if source == "events" else ()))
    plain, job = (
        run_ranks(JOB, nproc=NPROC, arguments=("cuda", "inductor", *WAYS), options=options, agent=agent)
        for agent in (False, True)
    )
    # Events are read a step late.
    compare(plain, job, WAYS, cached=True, untold=int(source == "events"))
    assert job.info().source == source
    if source == "events" and NPROC > 1:  # a burst of kernels comes seconds after the job's start
        assert any(step.collectives for step in job.steps())
