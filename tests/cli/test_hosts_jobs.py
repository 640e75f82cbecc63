"""Real jobs as they are seen, changed and started over a line: this machine, reached as any other."""

import json
import sys

import pytest

from overlaptop.launcher import Placement, bundled
from overlaptop.wire.endpoints import list_jobs

from .conftest import Traces, wait_until
from .terminals import START_LIMIT_S, Terminal
from .test_cli import overlaptop

SMALL = ["--layers", "2", "--width", "64", "--batch", "1", "--data-ms", "50"]


@pytest.mark.timeout(300)
def test_a_job_is_shown_and_changed_over_a_line(traces: Traces) -> None:
    with bundled("ddp", SMALL, Placement(2, "gloo")) as launcher:
        launcher.start()
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
    assert wait_until(lambda: not traces.alive())


@pytest.mark.timeout(300)
def test_a_workload_started_over_a_line_is_shown_and_ends_with_the_dashboard(
    traces: Traces,
) -> None:
    terminal = Terminal("local://", "--python", sys.executable)
    try:
        terminal.read_until(b"allreduce_matmul")
        terminal.type("\r")
        terminal.read_until(b"optimizer")
        terminal.type("qy")
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 0
    finally:
        terminal.close()
    assert wait_until(lambda: not traces.alive())
