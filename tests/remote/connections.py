"""Connections to relays of the tests' own, and a clock that a test moves."""

import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from selectors import DefaultSelector
from typing import Any, TypeVar

from overlaptop.remote.bootstrap import remote_command
from overlaptop.remote.child import end_all
from overlaptop.remote.connection import ConnectionState
from overlaptop.remote.host import RemoteHost
from overlaptop.remote.targets import Target
from tests.processes import PATIENCE_S, eventually

FAKE_RELAYS = Path(__file__).with_name("fake_relays.py")

T = TypeVar("T")


def fake_relay(behaviour: str) -> Target:
    return Target.via(shlex.join([sys.executable, str(FAKE_RELAYS), behaviour]))


class Connections:
    """Makes connections, and sees to it that nothing of them outlives its test.

    Their monotonic clock stands still unless it is moved.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._selector = DefaultSelector()
        self._made: list[RemoteHost] = []

    def __call__(self, target: Target | str, **options: Any) -> RemoteHost:
        target = fake_relay(target) if isinstance(target, str) else target
        clock = {"monotonic_s": lambda: self.now_s}
        self._made.append(RemoteHost(target, remote_command(), self._selector, **clock, **options))
        return self._made[-1]

    def up(self, behaviour: str) -> RemoteHost:
        connection = self(behaviour)
        self.until(connection, lambda: connection.ready)
        return connection

    def until_down(self, connection: RemoteHost) -> RemoteHost:
        self.until(connection, lambda: connection.state in (ConnectionState.DOWN, ConnectionState.FAILED))
        return connection

    def lose(self, connection: RemoteHost) -> None:
        os.kill(connection.processes[0].pid, signal.SIGKILL)
        self.until_down(connection)

    def until(self, connection: RemoteHost, probe: Callable[[], T]) -> T:
        return eventually(lambda: connection.maintain() or probe())

    def wait(self, connection: RemoteHost, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.now_s += 0.5
            connection.maintain()
            time.sleep(0.002)

    def wait_for_answers(self, connection: RemoteHost, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            connection.maintain()
            select.select([connection.processes[0].out_fd], [], [], PATIENCE_S)
            connection.maintain()

    def close(self) -> None:
        for connection in self._made:
            connection.close()
        end_all([process for each in self._made for process in each.processes], 0.5)
        self._selector.close()
