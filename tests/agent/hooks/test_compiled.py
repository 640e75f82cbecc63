"""Jobs that torch.compile compiles: it makes of them what it makes of them without the agent."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.agent.conftest import Finished, Run
from tests.agent.sources.gpu import one_gpu

from .compiled_job import STEPS

JOB = Path(__file__).parent / "compiled_job.py"
WAYS = ("wrapped", "method", "step")


def printed(job: Finished, rank: int) -> dict[str, dict]:
    return {each["way"]: each for each in map(json.loads, job.outs[rank].splitlines())}


def words(err: str) -> list[str]:
    return [re.sub(r"\d\d:\d\d:\d\d\.\d+( \d+)?", "", line) for line in err.splitlines()]


def compare(plain: Finished, job: Finished, ways: Sequence[str], *, cached: bool, untold: int = 0) -> None:
    """With the agent: the same job, and measured. ``cached``: it found compiled what the other compiled;
    ``untold``: so many of its last steps the source may not have told at its end.
    """
    assert {*plain.codes, *job.codes} == {0}, (plain.errs, job.errs)
    for rank in range(len(plain.codes)):
        assert set(words(job.errs[rank])) <= set(words(plain.errs[rank]))  # who compiles may be warned more
        alone, beside = printed(plain, rank), printed(job, rank)
        assert list(alone) == list(beside) == list(ways)
        for way in ways:
            # Who compiles has more Python to look at. And the call of the hooks around an optimizer's step,
            # which has no operation in it, is not traced.
            if cached or way == "step":
                for count in ("frames", "graph_break", "resumes", "unimplemented"):
                    assert sum(beside[way].pop(count).values()) <= sum(alone[way].pop(count).values())
            assert beside[way] == alone[way]
        ended = len(ways) * STEPS - 1
        assert ended - untold <= len(job.steps(rank)) <= ended
        # A rank may wait 10 s for another one that still compiles.
        assert all(each.text.startswith("comes no further") for each in job.notices(rank))


def test_compiled_job_trains_as_without_the_agent(run_ranks: Run) -> None:
    """Inductor's code takes a C++ compiler 20 s."""
    arguments = ("cpu", "eager", *WAYS)
    plain, job = (
        run_ranks(JOB, nproc=1, arguments=arguments, options=("--every", "1"), agent=agent, forked=True)
        for agent in (False, True)
    )
    compare(plain, job, WAYS, cached=False)
    measured = [step for step in job.steps() if step.collectives]
    assert len(measured) >= len(job.steps()) // 2
    assert all(step.comm_bytes for step in measured)


MARKED = """
    import torch
    import overlaptop.agent
    @torch.compile(backend="eager")
    def step(data):
        doubled = data * 2
        overlaptop.agent.step()
        return doubled + 1
    for _ in range(6):
        print(step(torch.ones(4)).sum().item())
"""


def test_step_marked_in_a_compiled_function_counts(run_ranks: Run) -> None:
    job = run_ranks(MARKED, nproc=1, forked=True)
    assert (job.codes, job.outs, job.errs) == ([0], ["12.0\n" * 6], [""])
    assert len(job.steps()) == 5


@pytest.mark.gpu
@pytest.mark.timeout(400)
@one_gpu
@pytest.mark.parametrize("source", ["kernels", "events"])
def test_a_compiled_job_on_gpus_trains_as_without_the_agent_and_is_measured(
    run_ranks: Run, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nproc = min(2, torch.cuda.device_count())
    # Inductor times kernels of equal use but other rounding, and keeps the fastest for the next job.
    monkeypatch.setenv("TORCHINDUCTOR_DETERMINISTIC", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    options = ("--source", source, *(("--every", "1") if source == "events" else ()))
    plain, job = (
        run_ranks(JOB, nproc=nproc, arguments=("cuda", "inductor", *WAYS), options=options, agent=agent)
        for agent in (False, True)
    )
    # Events are read a step late.
    compare(plain, job, WAYS, cached=True, untold=int(source == "events"))
    assert job.info().source == source
    if source == "events" and nproc > 1:  # a burst of kernels comes seconds after the job's start
        assert any(step.collectives for step in job.steps())
