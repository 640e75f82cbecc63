"""Another workload from the dashboard's keys, with real jobs in a real terminal."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from overlaptop.wire.endpoints import JobRecord, is_alive, list_jobs

from .conftest import StartRanks, Traces, wait_until
from .terminals import START_LIMIT_S, Terminal

SMALL = ["--matrix", "32", "--products", "2", "--data-ms", "50"]
STEPS = b"1 collective"
"""On the overview once there are some."""
DOWN = "\x1b[B"


def order(terminal: Terminal, options: list[str]) -> None:
    """Type these options in place of those that are there, and end the job that runs."""
    terminal.type(f"\x15{' '.join(options)}\ry")


def jobs_are(condition: Callable[[list[JobRecord]], bool]) -> bool:
    return wait_until(lambda: condition(list_jobs()), START_LIMIT_S)


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.mark.timeout(300)
def test_the_dashboard_of_a_demo_turns_to_another_workload_and_ends_the_one_before(traces: Traces) -> None:
    terminal = Terminal("demo", "allreduce_matmul", "--nproc", "1", "--", *SMALL, "--size-mb", "0.2")
    try:
        terminal.read_until(STEPS)
        (first,) = list_jobs()
        terminal.type("w")
        terminal.read_until(b"--size-mb")
        terminal.type(" --prod")
        terminal.type("\r")
        terminal.read_until(b"expected")
        assert is_alive(first.hub_pid, first.hub_start_ticks)  # not for a typo
        order(terminal, [*SMALL, "--size-mb", "0.1"])
        assert jobs_are(lambda jobs: bool(jobs) and first.job not in [job.job for job in jobs])
        terminal.seen = b""
        terminal.read_until(STEPS)
        terminal.type("w")
        terminal.read_until(b"ended here")
        assert jobs_are(lambda jobs: len(jobs) == 1 and bool(jobs[0].rank_pids))
        (second,) = list_jobs()
        assert not is_alive(first.hub_pid, first.hub_start_ticks)
        assert command_line(second.rank_pids[0])[-3:-1] == ["--size-mb", "0.1"]
        terminal.type("\x03")
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 0
    finally:
        terminal.close()
    assert traces.alive() == []


@pytest.mark.timeout(300)
def test_a_job_that_somebody_else_started_goes_on_beside_the_one_that_is_started_here(
    start_ranks: StartRanks, traces: Traces
) -> None:
    theirs = start_ranks("allreduce_matmul", *SMALL, ranks=1)
    assert jobs_are(bool)
    (other,) = list_jobs()
    terminal = Terminal()
    try:
        terminal.read_until(STEPS)
        terminal.type("w")
        terminal.read_until(b"beside")
        terminal.type(f"{DOWN}{DOWN}{' '.join(SMALL)}\t1\r")
        assert jobs_are(lambda jobs: len(jobs) == 2)
        terminal.seen = b""
        terminal.read_until(STEPS)
        terminal.type("qy")
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 0
    finally:
        terminal.close()
    assert theirs.poll() is None
    assert [job.job for job in list_jobs()] == [other.job]
    theirs.kill()
    assert wait_until(lambda: traces.alive() == [])


def test_help_after_two_dashes_is_the_workloads_and_starts_nothing(traces: Traces) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "overlaptop", "demo", "ddp", "--json", "--", "--help"],
        capture_output=True, text=True, timeout=START_LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "--bucket-cap-mb MB" in done.stdout
    assert traces.alive() == []


@pytest.mark.parametrize("options", [["--layers", "two"], ["--device", "cuda"]])
def test_a_demo_that_cannot_run_says_so_before_it_starts_anything(
    traces: Traces, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = subprocess.run(
        [sys.executable, "-m", "overlaptop", "demo", "ddp", "--json", "--nproc", "2", "--", *options],
        capture_output=True, text=True, timeout=START_LIMIT_S,
    )  # fmt: skip
    assert done.returncode == (2 if "--layers" in options else 1)
    assert done.stderr.count("\n") == 1
    assert options[0] in done.stderr
    assert traces.alive() == []
