"""Records a job that was started with ``--record``, in a process of its own: a slow or full disk does not
stop the hub.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from overlaptop.jobs.record import JobRecord


class JobRecorder:
    """Runs ``overlaptop record`` on this hub's job. It ends by itself, after the job."""

    def __init__(self, job: JobRecord, folder: str, keep: str, complain: Callable[[str], None]) -> None:
        """``complain``: called with one line if the recording cannot begin, or ends before the job."""
        self._complain = complain
        self._process: subprocess.Popen[str] | None = None
        name = f"{job.job}-{job.host}-{time.strftime('%Y%m%d-%H%M%S')}.mcap"
        command = [sys.executable, "-P", "-m", "overlaptop", "record", "--job", job.job]
        try:
            self._process = subprocess.Popen(
                [*command, f"--output={Path(folder) / name}", f"--keep={keep}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as fault:
            complain(f"the job is not recorded: {fault.strerror}")

    def tick(self) -> None:
        process = self._process
        if process is None or process.poll() is None:
            return
        self._process = None
        assert process.stderr is not None, "it is a pipe"
        with process.stderr as stderr:
            lines = stderr.read().splitlines()
        if process.returncode:
            why = lines[-1].removeprefix("overlaptop: ") if lines else f"status {process.returncode}"
            self._complain(f"the job is not recorded any more: {why}")
