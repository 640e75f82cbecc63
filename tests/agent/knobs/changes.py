"""Runs the jobs that are changed while they train, and checks what must hold in each of them."""

from __future__ import annotations

import json
from pathlib import Path

REBUCKETED = Path(__file__).with_name("rebucket_job.py")
PREFETCHING = Path(__file__).with_name("prefetch_job.py")


def switched(run_ranks, nproc, steps, switches, *variants):
    """What each rank says of each variant whose DDP buckets were changed so often, on all ranks alike."""
    job = run_ranks(
        REBUCKETED, nproc=nproc, agent=False, listen=False, arguments=(str(steps), str(switches), *variants)
    )
    assert job.codes == [0] * nproc, job.errs
    for out in job.outs:
        results = [json.loads(line) for line in out.splitlines()]
        assert [result["variant"] for result in results] == list(variants)
        for result in results:
            assert len(result["said"]) == switches
            assert result["identical on all ranks"], result
            sizes = [size / (1 << 20) for size in (result["at first"], *dict(result["asked"]).values())]
            assert result["said"] == [
                f"bucket_cap_mb {before:g} -> {after:g} at step {step}"
                for before, after, (step, _) in zip(sizes, sizes[1:], result["asked"], strict=False)
            ]
            yield result


def changed(run_ranks, nproc, steps, changes, *variants):
    """What rank 0 says of each variant whose FSDP2 prefetch was changed so often, without losing a bit."""
    job = run_ranks(
        PREFETCHING, nproc=nproc, agent=False, listen=False, arguments=(str(steps), str(changes), *variants)
    )
    assert job.codes == [0] * nproc, job.errs
    told = [[json.loads(line) for line in out.splitlines()] for out in job.outs]
    for results in zip(*told, strict=True):
        first = results[0]
        for result in results:
            assert result["same losses"], result
            assert result["same weights"], result
            for alike in ("variant", "said", "asked", "values", "original", "changes"):
                assert result[alike] == first[alike]
        assert len(first["said"]) == changes
    assert [result["variant"] for result in told[0]] == list(variants)
    return {result["variant"]: result for result in told[0]}
