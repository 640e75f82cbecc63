"""Real jobs as they are seen, changed and started over a line: this machine, reached as any other."""

import json
import sys

import pytest

from overlaptop.wire.endpoints import list_jobs

from .conftest import StartRanks, Traces, wait_until
from .terminals import START_LIMIT_S, Terminal
from .test_cli import overlaptop

SMALL = ["--layers", "1", "--width", "64", "--batch", "1", "--seq", "16", "--data-ms", "50"]


@pytest.mark.timeout(300)
def test_a_job_is_shown_and_changed_over_a_line(start_ranks: StartRanks, traces: Traces) -> None:
    job = start_ranks("ddp", *SMALL)
    assert wait_until(lambda: bool(list_jobs()), START_LIMIT_S)
    done = overlaptop("--json", "--steps", "2", "local://", "--wait")
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    told = [(step["rank"], step["type"]) for step in steps if step["type"] == "step"]
    assert sorted(told) == [(0, "step"), (0, "step"), (1, "step"), (1, "step")]
    changed = overlaptop("set", "bucket_cap_mb=7", "--host", "local://")
    assert (changed.returncode, changed.stderr.count("Traceback")) == (0, 0)
    assert "-> 7" in changed.stdout
    once = overlaptop("--once", "local://")
    assert once.returncode == 0
    assert once.stdout.count("running") == 2
    job.kill()
    assert wait_until(lambda: not traces.alive())


@pytest.mark.timeout(300)
def test_a_workload_started_over_a_line_is_shown_and_ends_with_the_dashboard(
    traces: Traces,
) -> None:
    terminal = Terminal("local://", "--python", sys.executable)
    try:
        terminal.read_until(b"allreduce_matmul")
        terminal.type("w")
        terminal.read_until(b"--bucket-cap-mb")
        terminal.type(f"{' '.join(SMALL)}\t1\r")
        terminal.read_until(b"forward ")
        terminal.type("qy")
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 0
    finally:
        terminal.close()
    assert wait_until(lambda: not traces.alive())
