"""A job below its supervisor (supervisor.py): starts, watches and ends it."""

import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
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
_EXIT = re.compile(supervisor.EXIT.replace(b"%d", rb"(\d+)"))


class SupervisedJob:
    """A job that belongs to this process.

    ``stop`` ends all its remaining processes. It may be called at any time and repeatedly. The job is also
    a context manager that stops it at the end of the block. Any thread may call any method.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        """The supervisor. Set while there is a connection."""
        self._log = -1
        self._received = b""
        self._status: int | None = None

    def __del__(self) -> None:
        if self._log >= 0:
            os.close(self._log)

    def supervise(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a command in its own session. Raises LaunchError if that fails."""
        with tempfile.TemporaryFile(prefix="overlaptop-") as log:
            self._log = os.dup(log.fileno())
        fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", supervisor.__file__, str(GRACE_S), *command],
                    stdin=theirs.fileno(),
                    stdout=self._log,
                    stderr=self._log,
                    start_new_session=True,
                    env=environment,
                )
            except OSError as error:
                ours.close()
                raise LaunchError(f"cannot start {sys.executable}: {error.strerror}") from error
        ours.setblocking(False)
        self._connection = ours

    def poll(self) -> int | None:
        with self._lock:
            if self._status is None and self._connection is not None and self._process is not None:
                self._receive(self._connection, self._process)
            return self._status

    def stop(self) -> None:
        """End the job and wait until all its processes have ended (usually well under a second)."""
        connection, process = self._connection, self._process
        if connection is None or process is None:
            return
        key, stopped_ns = self.key if self.poll() is None else "", time.time_ns()
        with suppress(OSError):
            connection.send(b"end\n")
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while self.poll() is None:
            if time.monotonic() > deadline_s:
                for pid in (*supervisor.descendants(process.pid), process.pid):
                    supervisor.send(pid, signal.SIGKILL)
            _await_data(connection, 1.0)
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
        if self._process is None:
            return False
        own = self._process.pid
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

    def _receive(self, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        try:
            data = connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        told = _EXIT.search(self._received)
        if told is None and data:
            return
        own = process.wait()
        # The supervisor sent no status: it was killed itself, or could not start.
        self._status = int(told[1]) if told is not None else own if own >= 0 else 128 - own
        connection.close()


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


def _await_data(connection: socket.socket, wait_s: float) -> None:
    if (descriptor := connection.fileno()) >= 0:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(wait_s * 1000)
