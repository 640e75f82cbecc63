"""The thread that watches the machine under the rank. The agent's own thread sends its messages.

Some NVML calls block for milliseconds. On the agent's thread they would delay measuring. A fault here ends
telemetry and nothing else.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from time import time
from typing import TYPE_CHECKING, Protocol

from overlaptop.agent.isolation.fault_barrier import warn
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.isolation.threads import Thread
from overlaptop.agent.telemetry.machine_monitor import Facts, JobGpu, MachineMonitor
from overlaptop.agent.telemetry.nvml import import_library
from overlaptop.wire.codec import WireError
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.agent.placement import RankPlacement

PERIOD_S = 0.5
NUMA_EVERY = 30
"""Periods between two reads of the CPU placement, as a read needs the GIL a hundred times. A change of the
allowed CPUs triggers a read at once."""
DEVICE_EVERY = 20
"""Periods between two reads of a GPU's changing facts (an idle link slows down)."""
MAX_UNSENT = 64
STOP_S = 0.1
"""Longest wait at the agent's end for a running NVML call."""


def until_next_s(now_s: float) -> float:
    """Return the time from this Unix time to the next sampling time, which all ranks share.

    The clock that ends a wait may be slightly early, so a sampling time just ahead counts as past.
    """
    left_s = PERIOD_S - now_s % PERIOD_S
    return left_s if left_s > PERIOD_S / 4 else left_s + PERIOD_S


class MessageQueue(Protocol):
    """The interface to reporting.sender.Sender, which this package must not import."""

    connections: int

    def put(self, message: Message) -> None:
        """Queue a message. Raises WireError."""

    def put_state(self, message: Message) -> None:
        """Queue a message if it differs from the last of its type. Raises WireError."""


class Telemetry:
    """Gathers facts and samples on a separate thread; the agent's thread passes them to the sender."""

    def __init__(self, notice: Callable[[str, str], None], *, enabled: bool) -> None:
        """``notice(level, text)`` is sent to the dashboard."""
        self._notice = notice
        self._over = not enabled
        self._followed: tuple[JobGpu | None] | None = None
        """The GPU to watch, once known. It is a new tuple each time the GPU may have changed."""
        self._ending = threading.Event()
        self._thread: Thread | None = None
        self._samples: deque[DeviceSample] = deque(maxlen=MAX_UNSENT)
        self._facts: dict[type, Facts] = {}
        self._refused: set[type] = set()
        """Types of facts that do not fit in a message."""

    def follow(self, find: Callable[[], JobGpu | None]) -> None:
        """Watch the GPU that `find` returns, None for a job without one. On the job's thread."""
        if self._over:
            return
        try:
            found = (find(),)
            if found != (None,):
                import_library()
            if found != self._followed:
                self._followed = found
        except Exception as fault:  # torch may return anything
            if raised_by_job(fault):
                raise
            self._end(fault)

    def serve(self, queue: MessageQueue, place: "RankPlacement") -> None:
        """Start the thread if needed, and send its messages. In each round of the agent's thread."""
        if self._over or self._followed is None:
            return
        try:
            if self._thread is None and not self._ending.is_set():
                self._thread = Thread(partial(self._run, place))
            self._send(queue)
        except Exception as fault:  # noqa: BLE001 - the agent must go on measuring
            self._end(fault)

    def stop(self) -> None:
        """End the thread; gathered data can still be sent."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _send(self, queue: MessageQueue) -> None:
        if queue.connections == 0:
            return  # keep the newest samples here: the sender's queue would keep older ones, too
        for facts in self._facts.copy().values():
            self._put(queue.put_state, facts)
        while self._samples:
            self._put(queue.put, self._samples.popleft())

    def _put(self, put: Callable[[Message], None], message: Facts | DeviceSample) -> None:
        try:
            put(message)
        except WireError as fault:  # a machine may exceed a message's limits
            kind = type(message)
            if kind not in self._refused:
                self._refused.add(kind)
                self._report(f"no {kind.__name__}: {fault}")

    def _end(self, fault: Exception) -> None:
        if self._over:
            return
        self._over = True
        self._ending.set()
        self._report(f"no telemetry: {type(fault).__name__}: {fault}")

    def _report(self, text: str) -> None:
        warn(text[:400])
        self._notice("warning", text[:400])

    def _run(self, place: "RankPlacement") -> None:
        try:
            while not self._ending.is_set():
                followed = self._followed
                assert followed is not None, "serve starts the thread when it is known"
                watch = MachineMonitor(place.rank, place.host, followed[0])
                try:
                    self._watch(watch, followed)
                finally:
                    watch.close()
        except Exception as fault:  # noqa: BLE001 - the job and the rest of the agent go on
            self._end(fault)

    def _watch(self, watch: MachineMonitor, followed: tuple[JobGpu | None]) -> None:
        """Watch until the end, or until the GPU to watch changes."""
        for facts in watch.first_facts():
            self._keep(facts)
        for period in count(1):
            if self._ending.wait(until_next_s(time())) or self._followed is not followed:
                return
            sample = watch.sample()
            if sample is not None:
                self._samples.append(sample)
            if period % NUMA_EVERY == 0 or watch.numa.is_moved():
                self._keep(watch.numa.facts())
            if period % DEVICE_EVERY == 0:
                self._keep(watch.device())

    def _keep(self, facts: Facts) -> None:
        if self._facts.get(type(facts)) != facts:
            self._facts[type(facts)] = facts
