"""ReplaySession: plays a recording into a JobState, on the recording's clock."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from overlaptop.fleet.job_session import QUIET_AFTER_S
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.session import ReadSession
from overlaptop.fleet.snapshot import HubState, NodeView, Snapshot
from overlaptop.recording.batch import LIVE, NODE, STATE, Batch, NodeClock
from overlaptop.wire.messages import StepTotals, Welcome

if TYPE_CHECKING:
    from overlaptop.recording.reader import Recording

BEFORE_NS = 180_000_000_000  # Time read before the shown moment, for figures, findings and past steps
CATCH_UP_NS = 500_000_000  # Recorded time per tick while catching up with a moment
GAP_NS, GAP_PARTS = 250_000_000, 64
"""Maximum time between two ticks, so that stale ranks are noticed; in a gap without messages, also the part
of the gap so far that a tick may last."""


class ReplaySession(ReadSession):
    """A recorded job at one moment of its recording. Its time advances with ours, multiplied by the speed,
    unless it is paused.
    """

    def __init__(
        self,
        recording: "Recording",
        *,
        speed: float = 1.0,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.recording, self.speed = recording, speed
        self._monotonic_s = monotonic_s
        self.job_key: str | None = None
        self.paused = False  # Set by `pause`
        self.at_ns = 0  # The shown moment: Unix time on the recorder's clock
        self._latest: Snapshot
        self._seek(recording.first_ns)

    @property
    def over(self) -> bool:
        return self._next is None

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._from_s, self._from_ns = self._monotonic_s(), self.at_ns

    def seek(self, at_ns: int) -> Snapshot:
        """Move to that moment, within the recording, and return its Snapshot."""
        at_ns = min(max(at_ns, self.recording.first_ns), self.recording.last_ns)
        if not self.at_ns <= at_ns <= self.at_ns + BEFORE_NS:
            self._seek(at_ns)
        for _ in self._ticks(at_ns, CATCH_UP_NS):
            pass
        self.pause(self.paused)
        return self._latest

    def seek_step(self, number: int) -> bool:
        """Move to the moment when every rank has sent this step. False if there is none."""
        last_ns: dict[int, int] = {}
        for batch in _without_repeats(self.recording.batches()):
            for message in batch.messages():
                if isinstance(message, StepTotals) and message.step == number:
                    last_ns[message.rank] = batch.at_ns
            if last_ns and batch.at_ns - max(last_ns.values()) > BEFORE_NS:
                break
        if not last_ns:
            return False
        self.seek(max(last_ns.values()))
        return True

    def play(self, upto_ns: int | None = None, every_ns: int = 0) -> Iterator[Snapshot]:
        """Yield the present Snapshot, and then one for each of the recorder's reads until `upto_ns`, or
        until the end, as fast as possible. `every_ns`: combine the reads within this time.
        """
        yield self._latest
        yield from self._ticks(self.recording.last_ns if upto_ns is None else upto_ns, every_ns)

    def tick(self) -> Snapshot:
        """Return the Snapshot of the moment that is reached by now."""
        due_ns = self.at_ns
        if not self.paused:
            due_ns = self._from_ns + round((self._monotonic_s() - self._from_s) * 1e9 * self.speed)
        every_ns = CATCH_UP_NS if due_ns - self.at_ns > 2 * CATCH_UP_NS else 0
        fresh = list(self._ticks(min(due_ns, self.recording.last_ns), every_ns))
        self._latest = replace(
            self._latest,
            fresh=tuple(chain.from_iterable(each.fresh for each in fresh)),
            fresh_samples=tuple(chain.from_iterable(each.fresh_samples for each in fresh)),
            fresh_waits=tuple(chain.from_iterable(each.fresh_waits for each in fresh)),
        )
        return self._latest

    def _seek(self, at_ns: int) -> None:
        self._batches = _without_repeats(self.recording.batches(at_ns - BEFORE_NS))
        self._next = next(self._batches, None)
        self.at_ns = self._next.at_ns if self._next is not None else at_ns
        self._fleet = JobState(lambda: self.at_ns)
        self._received_ns: dict[str, int] = {}
        self._clocks = dict.fromkeys(self.recording.nodes, NodeClock())
        for _ in self._ticks(self.at_ns):
            pass
        self._from_s, self._from_ns = self._monotonic_s(), self.at_ns

    def _take(self, batch: Batch) -> None:
        if batch.kind == NODE:
            self._clocks[batch.node] = batch.node_clock()
            return
        self._received_ns[batch.node] = batch.at_ns
        for message in batch.messages():
            if isinstance(message, Welcome):
                self.job_key = message.job
            self._fleet.apply(message, batch.node)

    def _ticks(self, upto_ns: int, every_ns: int = 0) -> Iterator[Snapshot]:
        """Yield a Snapshot for each of the recorder's reads up to this moment, and others during long gaps.
        `every_ns`: combine the reads within this time.
        """
        while self._next is not None and self._next.at_ns <= upto_ns:
            at_ns = min(max(self._next.at_ns, self.at_ns + every_ns), upto_ns)
            yield from self._cross_gap(at_ns, max(GAP_NS, every_ns))
            self.at_ns = max(self.at_ns, at_ns)
            while self._next is not None and self._next.at_ns <= self.at_ns:
                batch, self._next = self._next, next(self._batches, None)
                self._take(batch)
            yield self._session_tick()
        if self._next is not None:
            yield from self._cross_gap(upto_ns, GAP_NS)

    def _cross_gap(self, upto_ns: int, most_ns: int) -> Iterator[Snapshot]:
        """Yield Snapshots until at most `most_ns` are left: one each GAP_NS, fewer as the gap lasts."""
        begun_ns = self.at_ns
        while upto_ns - self.at_ns > most_ns:
            every_ns = max(GAP_NS, (self.at_ns - begun_ns) // GAP_PARTS)
            self.at_ns = min(self.at_ns + every_ns, upto_ns)
            yield self._session_tick()

    def _session_tick(self) -> Snapshot:
        views = []
        for name, clock in self._clocks.items():
            hub, received_ns = self._fleet.hub(name), self._received_ns.get(name, 0)
            state, note = HubState.LIVE, ""
            if hub.job is None:
                state, note = HubState.WAITING, "the job is not there"
            elif hub.job_ended:
                state = HubState.ENDED
            elif self.at_ns - received_ns > QUIET_AFTER_S * 1e9:
                state, note = HubState.STALE, "its hub sends nothing"
            self._fleet.set_hub_state(state, note, node=name)
            view = NodeView(name, state, hub.since_ns, note, readonly=True)
            views.append(replace(view, offset_ns=clock.offset_ns, residual_ns=clock.residual_ns))
        nodes = views if tuple(self._clocks) != ("",) else ()
        self._latest = replace(self._fleet.snapshot(nodes, "waiting for a job"), recorded=True)
        return self._latest


def _without_repeats(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Skip keyframes, except at the reader's start and after lost batches."""
    wanted = applied = begun = False
    for batch in batches:
        begun = begun or batch.kind == LIVE
        wanted = wanted or batch.after_gap or (batch.kind == STATE and not begun)
        if batch.kind != STATE:
            if applied and batch.kind == LIVE:
                wanted = applied = False
            yield batch
        elif wanted:
            applied = True
            yield batch
