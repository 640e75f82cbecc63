"""A job below its supervisor (supervisor.py): starts, watches and ends it."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Self

from overlaptop.jobs import last_end
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord, list_jobs
from overlaptop.launch import supervisor
from overlaptop.launch.request import LaunchError

GRACE_S = 4.0
"""Time for torchrun to end its ranks, and for the hub to send its last status."""
STOP_LIMIT_S = 3 * GRACE_S + 2.0
TAIL_BYTES = 64 << 10

_TORCHRUN_REPORT = re.compile(r"^[EW]\d{4} \S+ \d+ \S*torch/distributed/elastic/")
_RANK_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\)")
_RANK_PREFIX = re.compile(r"^\[rank(\d+)\]:\s?")
_TORCHRUN_ADVICE = re.compile(r"^(\*+|Setting OMP_NUM_THREADS .*|\s*)$")


class SupervisedJob:
    """A job that belongs to this process.

    ``stop`` ends all its remaining processes. It may be called at any time and repeatedly. The job is also
    a context manager that stops it at the end of the block. Any thread may call any method.
    """

    def __init__(self) -> None:
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._log = -1

    def __del__(self) -> None:
        if self._log >= 0:
            os.close(self._log)

    def supervise(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a command in its own session. Raises LaunchError if that fails."""
        with tempfile.TemporaryFile(prefix="overlaptop-") as log:
            self._log = os.dup(log.fileno())
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", supervisor.__file__, str(GRACE_S), *command],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            raise LaunchError(f"cannot start {sys.executable}: {error.strerror}") from error

    def poll(self) -> int | None:
        """Return the job's exit status, as a shell would. None while any of its processes is left."""
        status = None if self._supervisor is None else self._supervisor.poll()
        # Negative: the supervisor was killed itself.
        return 128 - status if status is not None and status < 0 else status

    def stop(self) -> None:
        """End the job and wait until all its processes have ended (usually well under a second)."""
        if self._supervisor is None:
            return
        key, stopped_ns = self.key if self.poll() is None else "", time.time_ns()
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while self.poll() is None:
            if time.monotonic() > deadline_s:
                for pid in (*supervisor.descendants(self._supervisor.pid), self._supervisor.pid):
                    supervisor.send(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(1.0)
        if key:
            with suppress(OSError, JobFolderError):
                last_end.note_stop(key, stopped_ns)

    @property
    def key(self) -> str:
        """The running job's key. Empty without a hub."""
        with suppress(JobFolderError):
            return next((record.job for record in list_jobs() if self.owns(record)), "")
        return ""

    def output(self) -> list[str]:
        """Return the last lines that the job wrote to stdout and stderr."""
        if self._log < 0:
            return []
        size_bytes = os.fstat(self._log).st_size
        tail = os.pread(self._log, TAIL_BYTES, max(0, size_bytes - TAIL_BYTES))
        return tail.decode(errors="replace").splitlines()

    def owns(self, record: JobRecord) -> bool:
        """Whether `record` describes this job: its hub or its ranks run below our supervisor."""
        if self._supervisor is None:
            return False
        own = self._supervisor.pid
        return any(own in supervisor.ancestors(pid) for pid in (record.hub_pid, record.starter_pid) if pid)

    @property
    def how_it_ended(self) -> str:
        """How the first failed rank, else torchrun, ended: ``exit status 1``. Empty while the job runs."""
        status = self.poll()
        return "" if status is None else how_it_ended(status, self.output())

    @property
    def usage_error(self) -> bool:
        """Whether the job failed because its script refused its options (exit status 2)."""
        return any("(exitcode: 2)" in line for line in self.output())

    def complaint(self, max_lines: int = 12) -> list[str]:
        """Return the job's own error output: the end of one rank's output, without torchrun's."""
        return complaint(self.output(), max_lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def how_it_ended(status: int, output: Iterable[str]) -> str:
    """Return a job's exit as text: that of the first rank that torchrun reported as failed,
    else `status`, as in a shell.
    """
    failed = next((match for line in output if (match := _RANK_FAILED.search(line))), None)
    if failed is not None:
        status = int(failed[1])
        status = 128 - status if status < 0 else status
    if status > 128:
        with suppress(ValueError):
            return f"killed by {signal.Signals(status - 128).name}"
    return f"exit status {status}"


def complaint(output: Iterable[str], max_lines: int) -> list[str]:
    """Return the lines of a failed job's output that name the reason.

    Each failed rank writes the same lines, and torchrun adds a page about itself.
    Only one rank's lines are kept, each once.
    """
    lines: list[str] = []
    rank: str | None = None
    for line in output:
        if _TORCHRUN_REPORT.match(line) and lines:
            break
        if _TORCHRUN_ADVICE.match(line):
            continue
        prefix = _RANK_PREFIX.match(line)
        if prefix:
            rank = rank or prefix[1]
            if prefix[1] != rank:
                continue
            lines.append(line[prefix.end() :])
        elif line not in lines:
            lines.append(line)
    return lines[-max_lines:]
