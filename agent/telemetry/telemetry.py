"""The thread that watches the machine under the rank, beside the agent's own thread, which sends.

Some of NVML's calls block for milliseconds, and on the agent's thread would hold up what measures the job.
A fault in here ends telemetry, and nothing else.
"""

from __future__ import annotations

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
"""Periods from one look at where the process runs to the next, which comes at once where it may use other
CPUs: each look asks for the GIL a hundred times."""
DEVICE_EVERY = 20
"""Periods from one look at what changes in a GPU's facts (an idle link slows down) to the next."""
MAX_UNSENT = 64
STOP_S = 0.1
"""The longest that the agent's end waits for a call under way to return."""


def until_next_s(now_s: float) -> float:
    """From this Unix time to the next moment of sampling, the same on all ranks.

    The clock that ends a wait is another and may be a little early: the moment just missed counts as past.
    """
    left_s = PERIOD_S - now_s % PERIOD_S
    return left_s if left_s > PERIOD_S / 4 else left_s + PERIOD_S


class MessageQueue(Protocol):
    """What telemetry needs of reporting.sender.Sender: reporting imports what imports this room."""

    connections: int

    def put(self, message: Message) -> None:
        """Queue a message. Raises WireError."""

    def put_state(self, message: Message) -> None:
        """Queue a message that differs from the last of its kind. Raises WireError."""


class Telemetry:
    """Facts and samples, gathered on a thread of its own and handed to the sender on the agent's."""

    def __init__(self, notice: Callable[[str, str], None], *, enabled: bool) -> None:
        """``notice(level, text)`` is sent to the dashboard."""
        self._notice = notice
        self._over = not enabled
        self._followed: tuple[JobGpu | None] | None = None
        """What to watch, once it is known; another tuple each time that it may have changed."""
        self._ending = threading.Event()
        self._thread: Thread | None = None
        self._samples: deque[DeviceSample] = deque(maxlen=MAX_UNSENT)
        self._facts: dict[type, Facts] = {}
        self._refused: set[type] = set()
        """What no message holds."""

    def follow(self, find: Callable[[], JobGpu | None]) -> None:
        """Watch the GPU that `find` names, None for a job on none; called on the job's thread."""
        if self._over:
            return
        try:
            found = (find(),)
            if found != (None,):
                import_library()
            if found != self._followed:
                self._followed = found
        except Exception as fault:  # whatever torch answered
            if raised_by_job(fault):
                raise
            self._end(fault)

    def serve(self, queue: MessageQueue, place: RankPlacement) -> None:
        """Send what there is, and first of all start; called in each round of the agent's thread."""
        if self._over or self._followed is None:
            return
        try:
            if self._thread is None and not self._ending.is_set():
                self._thread = Thread(partial(self._run, place))
            self._send(queue)
        except Exception as fault:  # noqa: BLE001 - what the agent measures goes on
            self._end(fault)

    def stop(self) -> None:
        """End the thread; what it has gathered can still be sent."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _send(self, queue: MessageQueue) -> None:
        if queue.connections == 0:
            return  # this keeps the newest samples; the sender's queue would keep older ones, too
        for facts in self._facts.copy().values():
            self._put(queue.put_state, facts)
        while self._samples:
            self._put(queue.put, self._samples.popleft())

    def _put(self, put: Callable[[Message], None], message: Facts | DeviceSample) -> None:
        try:
            put(message)
        except WireError as fault:  # a machine may have more of something than a message holds
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

    def _run(self, place: RankPlacement) -> None:
        """The thread."""
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
        """Until the end, or until there is something else to follow."""
        for facts in watch.first_facts():
            self._keep(facts)
        for period in count(1):
            if self._ending.wait(until_next_s(time())) or self._followed is not followed:
                return
            sample = watch.sample()
            if sample is not None:
                self._samples.append(sample)
            if period % NUMA_EVERY == 0 or watch.is_moved():
                self._keep(watch.numa())
            if period % DEVICE_EVERY == 0:
                self._keep(watch.device())

    def _keep(self, facts: Facts) -> None:
        if self._facts.get(type(facts)) != facts:
            self._facts[type(facts)] = facts
