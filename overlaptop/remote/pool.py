"""The lines to all hosts: four tries at a time, at first with the user at the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from selectors import DefaultSelector

from overlaptop.remote import failures
from overlaptop.remote.bootstrap import far_words
from overlaptop.remote.child import end_all, wait_for_any
from overlaptop.remote.connection import Connection, ConnectionState
from overlaptop.remote.targets import Target

AT_ONCE = 4
"""Logins under way: an sshd refuses some of more than ten, and a login node's administrator is thankful."""
_LOOK_EVERY_S = 0.02
_CLOSE_PATIENCE_S = 0.5


class ConnectionPool:
    """The lines to these hosts, in their order."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        python: str = "",
        remote_dir: str = "",
        readonly: bool = False,
        say: Callable[[str], None] | None = None,
        seed: int | None = None,
    ) -> None:
        """``python``, ``remote_dir``, ``readonly``: as in bootstrap.far_words, ValueError as from there.

        ``say`` gets the progress, line by line: standard error, unless told otherwise. ``seed``: of the
        pauses' jitter.
        """
        words = far_words(python, remote_dir, readonly=readonly)
        self._selector = DefaultSelector()
        self._say = say or _to_stderr
        self.lines = tuple(
            Connection(
                target,
                words,
                may_start=self._may_start,
                selector=self._selector,
                seed=None if seed is None else seed + number,
            )
            for number, target in enumerate(targets)
        )

    def connect(self, *, interactive: bool, patience_s: float | None = None) -> None:
        """Tries each line once and waits for what becomes of it. What can be said of each is said.

        First all of them without asking anything, four at a time; then, where ``interactive``, one after
        the other those to which ssh could ask for a password or to confirm a host's key, on the terminal.
        Stops waiting after ``patience_s``; the rest is tried on by `poll`. Ctrl-C closes all lines.
        """
        deadline_s = float("inf") if patience_s is None else time.monotonic() + patience_s
        try:
            self._settle(self.lines, deadline_s)
            if interactive and _has_terminal():
                for line in [line for line in self.lines if line.asks]:
                    self._say(f"{line.target.name}: once more, with your help")
                    line.start(interactive=True, echo=_echo)
                    self._settle((line,), float("inf"))
        except BaseException:
            self.close()
            raise

    def poll(self) -> None:
        """Keeps all lines going that nobody else polls. What has come stays for whoever takes it."""
        for line in self.lines:
            line.keep()

    def receive(self) -> None:
        """Takes in what can be read now: for an event loop that looks at `fileno`."""
        for key, _ in self._selector.select(0):
            line: Connection = key.data
            line.receive()

    def fileno(self) -> int:
        """A descriptor that can be read from whenever `receive` has something to do; the same for good."""
        return self._selector.fileno()

    def close(self) -> None:
        """Gives all lines up, and comes back when nothing of them is left: after 1.5 s at most."""
        for line in self.lines:
            line.hang_up()
        end_all([carrier for line in self.lines for carrier in line.carriers], _CLOSE_PATIENCE_S)
        for line in self.lines:
            line.close()
        self._selector.close()

    def _may_start(self) -> bool:
        return sum(line.knocking for line in self.lines) < AT_ONCE

    def _settle(self, lines: Sequence[Connection], deadline_s: float) -> None:
        """Waits until each of them is up or was given up once, and says so."""
        waiting = list(lines)
        while waiting and time.monotonic() < deadline_s:
            self.poll()  # all: a relay to which nobody speaks for long ends
            for line in tuple(waiting):
                if line.settled:
                    waiting.remove(line)
                    self._say(_in_words(line))
            wait_for_any([carrier for line in waiting for carrier in line.carriers], _LOOK_EVERY_S)


def _has_terminal() -> bool:
    """Whether ssh could ask anybody."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _in_words(line: Connection) -> str:
    name, hello = line.target.name, line.hello
    if line.state is not ConnectionState.UP:
        return f"{name}: {line.reason}"
    if hello is None:
        return f"{name}: reached; {line.reason}"
    return failures.one_line(f"{name}: connected (overlaptop {hello.version} on {hello.host})")


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 # the screen has not opened yet


def _echo(data: bytes) -> None:
    """What ssh tells the user while it asks, as it would have told them itself."""
    sys.stderr.buffer.write(data)
    sys.stderr.flush()
