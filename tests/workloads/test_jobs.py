import argparse
import functools
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from overlaptop.workloads.catalog import DDP, find
from tests.agent.conftest import run_job

ON_CPU = ["--device", "cpu", "--dtype", "float32"]
TINY_GPT = [*ON_CPU, "--layers", "2", "--width", "64", "--seq", "16", "--batch", "2"]
TINY_MATMUL = [*ON_CPU, "--matrix", "32", "--products", "2", "--size-mb", "0.1"]
STEPS = 8
DDP_RUN = ["ddp", *TINY_GPT, "--bucket-cap-mb", "0.05", "--losses", "results"]
MATMUL_RUN = ["allreduce_matmul", *TINY_MATMUL, "--figures", "results"]


FAULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "jobs" / "recorded_faults.py"


def run(warm, folder, script, *options, ranks=2):
    return run_job(
        warm, folder, script, nproc=ranks, agent=False, listen=False, launched=ranks > 1,
        arguments=options, forked=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def results(warm, tmp_path_factory):
    """``results(words)``: what a job writes for each step, and its folder; equal means to the last bit."""

    def results_of(workload, *options):
        folder = tmp_path_factory.mktemp("job")
        script = FAULTS if workload == "faults" else find(workload).path
        done = run(warm, folder, script, *options, "--steps", str(STEPS))
        assert done.codes == [0, 0], done.errs
        return (folder / "results").read_text(), folder

    return functools.cache(results_of)


def losses(folder, rank):
    lines = (folder / "lost" / f"rank-{rank}.jsonl").read_text().splitlines()
    return {note["step"]: note for note in map(json.loads, lines)}


@pytest.mark.parametrize(
    ("by", "run"),
    [*((by, DDP_RUN) for by in ("sleep", "compute", "gc", "batches")), ("loader", MATMUL_RUN)],
)
def test_a_fault_makes_one_rank_late_and_changes_no_result(by, run, results):
    faulty = ["--by", by, "--untouched", "4", "--device", "cpu", "--share", "1"]
    done, folder = results("faults", "lost", *faulty, "--workload", shlex.join(run))
    assert done == results(*run)[0]
    for rank in (0, 1):
        notes = losses(folder, rank)
        # A step begins behind the optimizer; the last one of DDP has no forward pass.
        assert [*notes] == [*range(STEPS - (run is DDP_RUN))]
        late = {step for step, note in notes.items() if note["lost_ns"] > 0}
        assert late == ({step for step in notes if step >= 4} if rank or by == "batches" else set())
        assert late == {step for step, note in notes.items() if note["is_faulty"]}
        arrived_ns = [0, *(note["arrived_ns"] for note in notes.values())]
        assert all(
            before_ns + note["lost_ns"] <= note["arrived_ns"]
            for before_ns, note in zip(arrived_ns, notes.values(), strict=False)
        )


@pytest.mark.parametrize("slower_from", [10, 100, 1000])
def test_time_runs_out_within_a_step_even_if_steps_grow(monkeypatch, slower_from):
    """A step of eight batches takes eight times as long, from whichever step on."""
    from overlaptop.workloads import job

    now_s, step = 0.0, 0
    monkeypatch.setattr(job.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(job.dist, "broadcast", lambda tensor, src: None)
    place = job.Place(0, 1, job.torch.device("cpu"))

    def batches():
        return 8 if step >= slower_from else 1

    options = argparse.Namespace(steps=0, seconds=20.0, data_ms=0)
    for step in job.step_numbers(options, place, batches):  # noqa: B007 - batches() reads it
        now_s += 0.1 * batches()
    assert 20.0 - 1e-6 <= now_s < 20.0 + 2 * 0.8


def test_a_workload_runs_by_its_path_alone(tmp_path):
    """In a process of its own, which nobody has prepared."""
    words = [sys.executable, str(find("allreduce_matmul").path), "--steps", "3", *TINY_MATMUL]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("step")


@pytest.mark.parametrize(
    ("rank", "world_size", "here", "gpus", "index"),
    [(1, 2, 2, 2, 1), (1, 2, 2, 1, 0), (3, 4, 4, 2, 1), (1, 2, 2, 0, None), (1, 4, 2, 1, None)],
)
def test_ranks_have_a_gpu_each_or_take_them_in_turn(
    monkeypatch, capsys, rank, world_size, here, gpus, index
):
    """As torchrun starts a rank on a host with so many GPUs. ``index``: None where that is refused."""
    from overlaptop.workloads import job

    monkeypatch.setattr(job.torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(job.torch.cuda, "device_count", lambda: gpus)
    sizes = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": here}
    for name, value in {"RANK": rank, "LOCAL_RANK": rank % here, **sizes}.items():
        monkeypatch.setenv(name, str(value))
    if index is not None:
        options, place = job.parse(DDP, [])
        assert (place.device.index, place.shares_gpu) == (index, gpus < here)
        assert (options.layers, options.width) == ((8, 1024) if gpus < here else (16, 2048))
        return
    with pytest.raises(SystemExit) as ended:
        job.parse(DDP, ["--device", "cuda"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ("ranks of several hosts cannot share GPUs" if gpus else "there is no GPU here") in line
