"""Starts the jobs that benchmarks measure, and what watches them; all of it ends with the benchmark."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from overlaptop.launch.supervisor import end_with_parent

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = ROOT / "workloads"
OVERLAPTOP = (sys.executable, "-m", "overlaptop")
RECORDS = (*OVERLAPTOP, "--json", "--detail", "--wait")  # Writes a job's records, once there is a job
IS_NO_REASON = re.compile(r"Warning: |^ |^W\d{4} ")
"""Of a line of stderr: a warning, a line of source below one, or a warning of torch's log."""
END_S = 40.0  # For torchrun to end its ranks: it waits 30 s for those that hang


def torchrun(nproc: int, *words: str | Path, agent: Sequence[str] | None = ()) -> list[str]:
    """The command of a job: a script and its options, under an agent and its options; None: without one."""
    under = () if agent is None else ("-m", "overlaptop.agent", *agent)
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}")
    return [sys.executable, *launcher, *under, *map(str, words)]


@contextmanager
def job_folder() -> Iterator[Path]:
    """A new folder; the sockets of jobs that start within the block lie in its folder ``jobs``."""
    with tempfile.TemporaryDirectory(prefix="ot-", ignore_cleanup_errors=True) as folder:
        os.environ["OVERLAPTOP_DIR"] = f"{folder}/jobs"
        yield Path(folder)


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which ends with the block; `options` are those of Popen."""
    options = {"stdin": subprocess.DEVNULL, **options}
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent, **options)
    try:
        yield process
    finally:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
                break


def why_it_failed(stderr: str) -> str:
    """The first error that a job wrote, or its first line that is no warning."""
    lines = [line for line in stderr.splitlines() if line.strip() and not IS_NO_REASON.search(line)]
    errors = [line.strip() for line in stderr.splitlines() if "Error: " in line or "error: " in line]
    said = (errors or lines or ["it said nothing"])[0]
    return re.sub(r"^\[rank\d+\]: ", "", said)[:200]
