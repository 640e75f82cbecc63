"""The host source: the training thread and the collectives by the host's clock (gloo on a CPU).

A collective lasts from its issue until its future completes. The end is seen in the future's callback,
which needs the GIL, or earlier by the training thread, at a boundary, an edge or the end of a wait. A send
or receive of gloo has no future; it lasts until the job has waited for it. Compute is the step minus the
time the training thread was blocked waiting for communication.
"""

import weakref
from collections.abc import Generator
from typing import Any

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.fault_barrier import raise_later
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.sources.base import CollectiveCall, Edge, Wait
from overlaptop.agent.sources.hooked_source import MAX_MARKS, HookedSource, RecordedCollective, RecordedStep
from overlaptop.wire.messages import LEFT_OUT


class HostSource(HookedSource):
    """Spans by the host's clock. See sources.base.Source for the protocol."""

    name = "host"

    def __init__(
        self, phases_only: bool, every: int | None, reason: str, budget: float | None = None
    ) -> None:
        super().__init__(phases_only, every, reason, budget)
        self._unended: dict[int, tuple[RecordedCollective, weakref.ref[Any]]] = {}
        """By the Work's id: calls without a future that the job has not waited for, with the Work."""
        self._newest: Any = None
        """The newest such Work, until the job holds it: it gets this object, as long as it lives."""
        self._outstanding: dict[int, tuple[RecordedCollective, Any]] = {}
        """By id: collectives whose future has not called back, with the future."""

    def start(self) -> None:
        """Do nothing: the host's clock always works."""

    def stop(self) -> None:
        self._recording = None

    @property
    def outstanding(self) -> int:
        """Collectives that will still call back, on a gloo thread."""
        return len(self._outstanding)

    def boundary(self, step: int) -> None:
        self._newest = None
        self._leave_out_dropped()
        at_ns = self._now_ns()
        ended = self._begin_step(step, at_ns, at_ns)
        if ended is not None:
            self._finish(ended)

    def edge(self, edge: Edge) -> None:
        recording = self._recording
        if recording is not None and len(recording.edges) < MAX_MARKS:
            recording.edges.append((edge, self._now_ns()))

    def _begin(self, call: CollectiveCall, recording: RecordedStep) -> RecordedCollective | None:
        if call.device_type != "cpu":
            self.reason = f"steps with {call.op} on {call.device_type} {LEFT_OUT}: no host clock sees it"
            recording.invalid = True
            return None
        self._newest = None
        return RecordedCollective(call, now_ns())

    def issued(self, token: RecordedCollective, work: Any) -> None:
        """Learn the end from the Work's future; a call without a Work is over when it returns."""
        if work is None:
            token.end = now_ns()
            return

        try:
            future = work.get_future()
        except (RuntimeError, NotImplementedError) as fault:  # some gloo operations have no future
            if raised_by_job(fault):
                raise
            if id(work) in self._unended:
                self._leave_out_dropped()  # the address of an earlier one
            self._unended[id(work)] = token, weakref.ref(work)
            self._newest = work
            return
        ending = self._ending(token)
        next(ending)
        try:
            self._outstanding[id(token)] = token, future
            future.add_done_callback(ending.send)
        except BaseException:
            self._outstanding.pop(id(token), None)  # otherwise the job's end would wait for it
            raise

    def _leave_out_dropped(self) -> None:
        """Leave out calls whose Work the job has dropped without waiting for it in Python."""
        for key, (token, work) in tuple(self._unended.items()):
            if work() is None:
                self._unended.pop(key, None)
                self._leave_out(token, f"{token.call.op} on {token.call.backend}")

    def _ending(self, token: RecordedCollective) -> Generator[None, object, None]:
        """Note the end when the future is sent in.

        If the future is already complete, it calls back at once on the job's thread, and torch swallows
        what a signal handler raises meanwhile. In a function that could happen before its first line. A
        generator is already inside its `try`.
        """
        try:
            yield
            self._end(token)
        except GeneratorExit:
            return
        except BaseException as fault:  # noqa: BLE001 - raised at the thread's next step
            raise_later(fault)
            self._end(token)
        yield

    def _end(self, token: RecordedCollective) -> None:
        if token.end is None:
            token.end = now_ns()
        self._outstanding.pop(id(token), None)

    def _now_ns(self) -> int:
        """Return the time, and set it as the end of completed collectives."""
        at_ns = now_ns()
        for token, future in tuple(self._outstanding.values()):
            if token.end is None and future.done():
                token.end = at_ns
        return at_ns

    def wait_begin(self, stream: Any = None) -> int | None:  # noqa: ARG002 - the host has no streams
        recording = self._recording
        measured = recording is not None and recording.detailed
        return now_ns() if measured or self._unended else None

    def wait_end(self, token: int, wait: Wait, work: Any = None) -> None:
        self._newest = None
        at_ns = self._now_ns()
        awaited = self._unended.get(id(work))
        if awaited is not None and awaited[1]() is work:
            awaited[0].end = at_ns
            self._unended.pop(id(work), None)
        recording = self._recording
        if recording is None or not recording.detailed:
            return
        if len(recording.waits) < MAX_MARKS:
            recording.waits.append((token, at_ns, wait))
        else:
            self._overflow(recording, "waits")
