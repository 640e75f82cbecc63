"""ReplaySession: plays a recording through the sessions of running jobs, on the recording's clock."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, cast

from overlaptop.fleet.cluster_session import ClusterSession
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.session import ReadSession
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.record import JobRecord
from overlaptop.recording.batch import LIVE, NODE, STATE, Batch, NodeClock
from overlaptop.wire.commands import Command
from overlaptop.wire.joining import GatheredHub
from overlaptop.wire.messages import Found, StepTotals, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.recording.reader import Recording
    from overlaptop.remote.host import RemoteHost

BEFORE_NS = 180_000_000_000
"""Time read before the shown moment, for figures, findings and past steps."""
CATCH_UP_NS = 500_000_000
"""Recorded time per tick while catching up with a moment."""
GAP_NS = 250_000_000
"""Maximum time between two ticks, so that stale ranks are noticed."""
GAP_PARTS = 64
"""In a gap without messages, a tick lasts at most this part of the gap so far."""


class _ReplayedHost:
    """One node of a recording: a RemoteHost for sessions, and the HubConnection to its hub."""

    ready = known = readonly = True
    alive = True
    """When the recording ends, the job keeps its last state."""
    connecting = False
    note = detail = ""
    bytes_per_s: float | None = None
    since_s = 0.0
    dropped = 0

    def __init__(self, name: str, now_ns: Callable[[], int]) -> None:
        self.name = name
        self.gathered: dict[bytes, GatheredHub] = {}
        self.clock = NodeClock()
        self._unread: list[Message] = []
        self._now_ns = now_ns
        self._received_ns: int | None = None
        self._job: JobRecord | None = None

    def take(self, batch: Batch) -> None:
        if batch.kind == NODE:
            self.clock = batch.node_clock()
            return
        self._received_ns, messages = batch.at_ns, batch.messages()
        self._unread += messages
        for message in messages:
            if isinstance(message, Welcome):
                self._job = _record_of(message)

    @property
    def last_received_s(self) -> float | None:
        return None if self._received_ns is None else (self._now_ns() - self._received_ns) / 1e9

    def poll(self) -> list[Message]:
        messages, self._unread = self._unread, []
        return messages

    def list_jobs(self) -> list[JobRecord]:
        return [self._job] if self._job is not None else []

    def open_hub(self, _record: JobRecord) -> "_ReplayedHost":
        return self

    def is_gone(self, _record: JobRecord) -> bool:
        return False

    def send(self, _message: Command | Found) -> bool:
        return False

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Do nothing: only recorded timelines are available."""

    def maintain(self) -> None:
        """Do nothing: `take` has added all messages."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class ReplaySession(ReadSession):
    """A recorded job at one moment of its recording.

    Its time advances with ours, multiplied by the speed, unless it is paused. `seek` moves to any moment.
    """

    def __init__(
        self,
        recording: "Recording",
        *,
        speed: float = 1.0,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start at the recording's first moment."""
        self.recording, self.speed = recording, speed
        self._monotonic_s = monotonic_s
        self._paused = False
        self._latest: Snapshot
        self._seek(recording.first_ns)

    @property
    def at_ns(self) -> int:
        """Return the shown moment: Unix time on the recorder's clock."""
        return self._now_ns

    @property
    def over(self) -> bool:
        return self._next is None

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._from_s, self._from_ns = self._monotonic_s(), self._now_ns

    def seek(self, at_ns: int) -> Snapshot:
        """Move to that moment, within the recording, and return its Snapshot."""
        at_ns = min(max(at_ns, self.recording.first_ns), self.recording.last_ns)
        if not self._now_ns <= at_ns <= self._now_ns + BEFORE_NS:
            self._seek(at_ns)
        for _ in self._ticks(at_ns, CATCH_UP_NS):
            pass
        self.pause(self._paused)
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
        due_ns = self._now_ns
        if not self._paused:
            due_ns = self._from_ns + round((self._monotonic_s() - self._from_s) * 1e9 * self.speed)
        every_ns = CATCH_UP_NS if due_ns - self._now_ns > 2 * CATCH_UP_NS else 0
        fresh = list(self._ticks(min(due_ns, self.recording.last_ns), every_ns))
        if not fresh:
            self._latest = replace(self._latest, fresh=(), fresh_samples=(), fresh_waits=())
        elif len(fresh) == 1:
            self._latest = fresh[0]
        else:
            self._latest = replace(
                fresh[-1],
                fresh=tuple(chain.from_iterable(each.fresh for each in fresh)),
                fresh_samples=tuple(chain.from_iterable(each.fresh_samples for each in fresh)),
                fresh_waits=tuple(chain.from_iterable(each.fresh_waits for each in fresh)),
            )
        return self._latest

    @property
    def job_key(self) -> str | None:
        return self._session.job_key

    # Internals

    def _seek(self, at_ns: int) -> None:
        """Restart the reader early enough for that moment."""
        self._batches = _without_repeats(self.recording.batches(at_ns - BEFORE_NS))
        self._next = next(self._batches, None)
        self._now_ns = self._next.at_ns if self._next is not None else at_ns
        self._hosts = {name: _ReplayedHost(name, lambda: self._now_ns) for name in self.recording.nodes}
        self._session = self._new_session()
        for _ in self._ticks(self._now_ns):
            pass
        self._from_s, self._from_ns = self._monotonic_s(), self._now_ns

    def _new_session(self) -> JobSession | ClusterSession:
        def now_ns() -> int:
            return self._now_ns

        def now_s() -> float:
            return self._now_ns / 1e9

        if tuple(self._hosts) == ("",):
            host = self._hosts[""]
            return JobSession(
                JobSelector(),
                list_jobs=host.list_jobs,
                open_hub=host.open_hub,
                is_gone=host.is_gone,
                clock_ns=now_ns,
                monotonic_s=now_s,
            )
        hosts = cast("Sequence[RemoteHost]", tuple(self._hosts.values()))
        return ClusterSession(hosts, clock_ns=now_ns, monotonic_s=now_s)

    def _ticks(self, upto_ns: int, every_ns: int = 0) -> Iterator[Snapshot]:
        """Yield a Snapshot for each of the recorder's reads up to this moment, and others during long gaps.
        `every_ns`: combine the reads within this time.
        """
        while self._next is not None and self._next.at_ns <= upto_ns:
            at_ns = min(max(self._next.at_ns, self._now_ns + every_ns), upto_ns)
            yield from self._cross_gap(at_ns, max(GAP_NS, every_ns))
            self._now_ns = max(self._now_ns, at_ns)
            while self._next is not None and self._next.at_ns <= self._now_ns:
                batch, self._next = self._next, next(self._batches, None)
                self._hosts[batch.node].take(batch)
            yield self._session_tick()
        if self._next is not None:
            yield from self._cross_gap(upto_ns, GAP_NS)

    def _cross_gap(self, upto_ns: int, most_ns: int) -> Iterator[Snapshot]:
        """Yield Snapshots until at most `most_ns` are left: one each GAP_NS, fewer as the gap lasts."""
        begun_ns = self._now_ns
        while upto_ns - self._now_ns > most_ns:
            every_ns = max(GAP_NS, (self._now_ns - begun_ns) // GAP_PARTS)
            self._now_ns = min(self._now_ns + every_ns, upto_ns)
            yield self._session_tick()

    def _session_tick(self) -> Snapshot:
        self._latest = replace(self._session.tick(), recorded=True)
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


def _record_of(welcome: Welcome) -> JobRecord:
    """Return the part of a job's record that its recording contains."""
    return JobRecord(
        protocol=PROTOCOL_VERSION,
        job=welcome.job,
        script=welcome.script,
        cwd="",
        host=welcome.host,
        world_size=welcome.world_size,
        python="",
        starter_pid=0,
        starter_start_ticks=None,
        hub_pid=0,
        hub_start_ticks=0,
        started_ns=welcome.started_ns,
        dashboard_socket="",
        rank_pids=(),
    )
