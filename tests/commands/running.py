"""The command line run in this process, in one of its own, or on a pseudo-terminal."""

import fcntl
import io
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec

from overlaptop.cli import main
from overlaptop.records import Record
from tests import snapshots

START_LIMIT_S = 90
PAGES = Path(__file__).with_name("pages")  # What commands print
OVERLAPTOP = [sys.executable, "-m", "overlaptop"]
# Workloads small enough to start in seconds on a busy machine.
SMALL_DDP = ["--layers", "1", "--width", "64", "--batch", "1", "--seq", "16", "--data-ms", "50"]
SMALL_MATMUL = ["--matrix", "32", "--products", "2", "--size-mb", "0.1", "--data-ms", "50"]
LATE = ["faults", "--by", "sleep", "--share", "0.5", "--workload", f"ddp {' '.join(SMALL_DDP)}"]
STEPS = b"1 collective"  # On the overview of allreduce_matmul once there are steps
LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"


def check_page(name, text):
    """Assert that this is printed as in the page of that name, and that records are as declared."""
    if text.startswith("{"):
        records(text)
    snapshots.check_page(PAGES, name, text)


def run_here(*words):
    """Run a command line in this process: its exit status and output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(list(map(str, words)))
        except SystemExit as end:
            status = end.code
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def overlaptop(*words, **options):
    """Run a command line in a process of its own, without input."""
    return subprocess.run(
        [*OVERLAPTOP, *words],
        capture_output=True, text=True, timeout=START_LIMIT_S, stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def run_code(code, *words):
    """Run Python code in a process of its own: its stdout, stderr and the packages it imported."""
    program = f"import sys\n{code}\nprint('loaded:', *sys.modules, file=sys.__stderr__)"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S)
    assert done.returncode == 0, done.stderr
    err, _, loaded = done.stderr.rpartition("loaded: ")
    return done.stdout, err, {name.partition(".")[0] for name in loaded.split()}


def records(text):
    """Lines of JSON, each of which is as its record is declared."""
    found = [json.loads(line) for line in text.splitlines()]
    for record in found:
        assert any(is_declared(record, declared) for declared in Record.__subclasses__()), record
    return found


def is_declared(record, declared):
    """Whether a record has the fields of this class, and values of their types."""
    try:
        msgspec.convert(record, declared)
    except msgspec.ValidationError:
        return False
    return list(record) == ["type", *declared.__struct_fields__]


class Terminal:
    """A program on a terminal of 120 columns and 32 rows. A context manager: what still runs is killed."""

    def __init__(self, *words, stderr=None):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 32, 120, 0, 0))
        self.process = subprocess.Popen(
            [*OVERLAPTOP, *words],
            stdin=theirs, stdout=theirs, stderr=stderr or theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )  # fmt: skip
        os.close(theirs)
        self.seen = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(20)
        if self._ours >= 0:
            os.close(self._ours)

    def read_until(self, text, limit_s=START_LIMIT_S):
        deadline_s = time.monotonic() + limit_s
        while text not in self.seen:
            assert time.monotonic() < deadline_s, self.seen[-3000:]
            if not self._read():
                raise AssertionError(self.seen[-3000:])

    def type(self, keys):
        os.write(self._ours, keys.encode())

    def close_window(self):
        """Take the terminal away, as closing its window does."""
        os.close(self._ours)
        self._ours = -1

    def wait(self):
        """Read to the program's end; its exit status."""
        while self._ours >= 0 and self._read():
            pass
        return self.process.wait(START_LIMIT_S)

    def _read(self):
        ended = self.process.poll() is not None  # before it is read: what it writes last may come after
        ready, _, _ = select.select([self._ours], [], [], 0.5)
        try:
            data = os.read(self._ours, 1 << 16) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.seen += data
        return bool(data) or not ended
