"""Records a job that was started with ``--record``, in a process of its own: a slow or full disk does not
stop the hub.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from overlaptop.jobs.record import JobRecord


class RecorderProcess:
    """Runs ``overlaptop record`` on this hub's job. It ends by itself, after the job."""

    def __init__(self, job: JobRecord, folder: str, keep: str, complain: Callable[[str], None]) -> None:
        """``complain``: called with one line if the recording cannot begin, or ends before the job."""
        self._complain = complain
        self._folder, self._keep = Path(folder), keep
        self._process: subprocess.Popen[str] | None = None
        self._next: JobRecord | None = None
        self._start(job)

    def restart_with_all_nodes(self, job: JobRecord) -> None:
        """Record anew once the job's other nodes can be reached through this hub (``--gather``). The new
        recording has the history of what the first one had.
        """
        if job.is_root and not self._has_all_nodes and self._next is None and self._process is not None:
            self._next = job
            self._process.terminate()

    def tick(self) -> None:
        process = self._process
        if process is None or process.poll() is None:
            return
        self._process = None
        assert process.stderr is not None, "it is a pipe"
        with process.stderr as stderr:
            lines = stderr.read().splitlines()
        if self._next is not None:
            if process.returncode == 128 + signal.SIGTERM:  # otherwise the file may be another one's
                with suppress(OSError):
                    self._path.unlink()
            self._start(self._next)
            self._next = None
        elif process.returncode:
            why = lines[-1].removeprefix("overlaptop: ") if lines else f"status {process.returncode}"
            self._complain(f"the job is not recorded any more: {why}")

    def _start(self, job: JobRecord) -> None:
        self._has_all_nodes = job.is_root
        self._path = self._folder / f"{job.job}-{job.host}-{time.strftime('%Y%m%d-%H%M%S')}.mcap"
        command = [sys.executable, "-P", "-m", "overlaptop", "record", "--job", job.job]
        try:
            self._process = subprocess.Popen(
                [*command, f"--output={self._path}", f"--keep={self._keep}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as fault:
            self._complain(f"the job is not recorded: {fault.strerror}")
