"""The host source: the training thread and the collectives by the host's clock (gloo on a CPU).

A collective lasts from its issue until its future completes. The end is seen in the future's callback,
which needs the GIL, or earlier by the training thread, at a boundary, an edge or the end of a wait. Compute
is the step minus the time the training thread was blocked waiting for communication.
"""

import threading
from collections.abc import Generator
from typing import Any

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.fault_barrier import raise_later
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.sources.assemble import MAX_MARKS, RecordedCollective, RecordedStep
from overlaptop.agent.sources.base import CollectiveCall, Edge, Wait
from overlaptop.agent.sources.hooked_source import HookedSource
from overlaptop.wire.messages import LEFT_OUT


class HostSource(HookedSource[int]):
    """Spans by the host's clock. See sources.base.Source for the protocol."""

    name = "host"

    def __init__(
        self, phases_only: bool, every: int | None, reason: str, budget: float | None = None
    ) -> None:
        super().__init__(phases_only, every, reason, budget)
        self._blocking: dict[int, RecordedCollective[int]] = {}
        """By thread: a call without a future that the thread is about to wait for."""
        self._outstanding: dict[int, tuple[RecordedCollective[int], Any]] = {}
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
        at_ns = self._now_ns()
        ended = self._begin_step(step, at_ns, at_ns)
        if ended is not None:
            self._finish(ended)

    def edge(self, edge: Edge) -> None:
        recording = self._recording
        if recording is not None and len(recording.edges) < MAX_MARKS:
            recording.edges.append((edge, self._now_ns()))

    def _begin(self, call: CollectiveCall, recording: RecordedStep[int]) -> RecordedCollective[int] | None:
        if call.device_type != "cpu":
            self.reason = f"steps with {call.op} on {call.device_type} {LEFT_OUT}: no host clock sees it"
            recording.invalid = True
            return None
        unended = self._blocking.pop(threading.get_ident(), None)
        if unended is not None:
            self.failed(unended)
        return RecordedCollective(call, now_ns())

    def issued(self, token: RecordedCollective[int], work: Any) -> None:
        """Learn the end from the Work's future; a call without a Work is over when it returns."""
        if work is None:
            token.end = now_ns()
            return

        try:
            future = work.get_future()
        except (RuntimeError, NotImplementedError) as fault:  # some gloo operations have no future
            if raised_by_job(fault):
                raise
            call = token.call
            if not call.is_async:
                self._blocking[threading.get_ident()] = token  # the caller is about to wait for it
                return
            self._leave_out(token, f"{call.op} on {call.backend}")
            return
        ending = self._ending(token)
        next(ending)
        try:
            self._outstanding[id(token)] = token, future
            future.add_done_callback(ending.send)
        except BaseException:
            self._outstanding.pop(id(token), None)  # otherwise the job's end would wait for it
            raise

    def _ending(self, token: RecordedCollective[int]) -> Generator[None, object, None]:
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

    def _end(self, token: RecordedCollective[int]) -> None:
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
        return now_ns() if recording is not None and recording.detailed else None

    def wait_end(self, token: int, wait: Wait) -> None:
        at_ns = self._now_ns()
        awaited = self._blocking.pop(threading.get_ident(), None) if wait is Wait.PURE else None
        if awaited is not None:
            awaited.end = at_ns
        recording = self._recording
        if recording is None:
            return
        if len(recording.waits) < MAX_MARKS:
            recording.waits.append((token, at_ns, wait))
        else:
            self._overflow(recording, "waits")
