"""ReplaySession: a recording as a Session: those of running jobs read it, by the recording's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, cast

from overlaptop.fleet.cluster_session import ClusterSession
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.record import JobRecord
from overlaptop.recording.batch import LIVE, NODE, STATE, Batch, NodeClock
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import StepTotals, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.recording.reader import Recording
    from overlaptop.remote.host import RemoteHost

BEFORE_NS = 180_000_000_000
"""Read before the moment that is shown: what figures, findings and past steps are of."""
CATCH_UP_NS = 500_000_000
"""Of recorded time in one tick on the way to a moment."""
GAP_NS = 250_000_000
"""Between two ticks at most, so that what is stale is seen to be."""
_OVER = "this is a recording: it takes no commands"


class _ReplayedHub:
    """A HubConnection to what a recording has of one hub."""

    def __init__(self, host: _ReplayedHost) -> None:
        self._host = host
        self.dropped = 0

    @property
    def alive(self) -> bool:
        return True  # at its end the recording's time stands still, and the job in it as it was

    @property
    def last_received_s(self) -> float | None:
        return self._host.silent_s()

    def poll(self) -> list[Message]:
        messages, self._host.untaken = self._host.untaken, []
        return messages

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """What was not recorded cannot be asked for."""

    def send(self, command: Command) -> bool:
        del command
        return False

    def close(self) -> None:
        """Nothing is open."""


class _ReplayedHost:
    """One node of a recording, as a RemoteHost for sessions."""

    connecting, readonly = False, True
    note = detail = ""
    bytes_per_s: float | None = None
    ready = known = True
    since_s = 0.0

    def __init__(self, name: str, now_ns: Callable[[], int]) -> None:
        self.name = name
        self.clock = NodeClock()
        self.untaken: list[Message] = []
        self._now_ns = now_ns
        self._received_ns: int | None = None
        self._job: JobRecord | None = None

    def take(self, batch: Batch) -> None:
        """Hand over what was read at that moment."""
        if batch.kind == NODE:
            self.clock = batch.node_clock()
            return
        self._received_ns, messages = batch.at_ns, batch.messages()
        self.untaken += messages
        for message in messages:
            if isinstance(message, Welcome):
                self._job = _record_of(message)

    def silent_s(self) -> float | None:
        """Seconds since the last batch."""
        return None if self._received_ns is None else (self._now_ns() - self._received_ns) / 1e9

    def maintain(self) -> None:
        """What is due was handed over already."""

    def list_jobs(self) -> list[JobRecord]:
        """The job that was recorded, once it is known."""
        return [self._job] if self._job is not None else []

    def open_hub(self, record: JobRecord) -> _ReplayedHub:
        """The connection to the hub that was recorded."""
        del record
        return _ReplayedHub(self)

    def is_gone(self, record: JobRecord) -> bool:
        """A recorded job is as it was."""
        del record
        return False

    def close(self) -> None:
        """Nothing is open."""


class ReplaySession:
    """A recorded job at one moment of its recording.

    Its time passes with ours, times the speed, while it is not paused. Any moment can be turned to.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        speed: float = 1.0,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins at the recording's first moment."""
        self.recording, self.speed = recording, speed
        self._monotonic_s = monotonic_s
        self._paused = False
        self._latest: Snapshot
        self._seek(recording.first_ns)

    @property
    def at_ns(self) -> int:
        """The moment that is shown: Unix time, by the recorder's clock."""
        return self._now_ns

    @property
    def over(self) -> bool:
        """Whether the recording's end is reached."""
        return self._next is None

    @property
    def paused(self) -> bool:
        """Whether its time stands still."""
        return self._paused

    def pause(self, paused: bool) -> None:
        """Stop the recording's time, or let it go on."""
        self._paused = paused
        self._from_s, self._from_ns = self._monotonic_s(), self._now_ns

    def seek(self, at_ns: int) -> Snapshot:
        """Turn to that moment, as far as the recording has it; return what was known then."""
        at_ns = min(max(at_ns, self.recording.first_ns), self.recording.last_ns)
        if not self._now_ns <= at_ns <= self._now_ns + BEFORE_NS:
            self._seek(at_ns)
        for _ in self._ticks(at_ns, CATCH_UP_NS):
            pass
        self.pause(self._paused)
        return self._latest

    def seek_step(self, number: int) -> bool:
        """Turn to the moment at which every rank has sent this step; False: there is none."""
        last_ns: dict[int, int] = {}
        for batch in self.recording.batches():
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
        """All that is left, or what is left until `upto_ns`, as fast as it can be read: what is known now,
        then a Snapshot for each look of the recorder's, or for those within each `every_ns` ns together.
        """
        yield self._latest
        yield from self._ticks(self.recording.last_ns if upto_ns is None else upto_ns, every_ns)

    def tick(self) -> Snapshot:
        """What was known at the moment that it is there by now."""
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
    def jobs(self) -> tuple[JobRecord, ...]:
        """The job that was recorded."""
        return self._session.jobs

    @property
    def job_key(self) -> str | None:
        """Key of that job."""
        return self._session.job_key

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """What was not recorded cannot be asked for."""

    def select(self, key: str) -> None:
        """There is no other job to turn to."""

    def send(self, command: Command) -> str:
        """There is no job to send it to."""
        del command
        return _OVER

    def close(self) -> None:
        """Nothing is open."""
        self._session.close()

    # What is behind it

    def _seek(self, at_ns: int) -> None:
        """Begin anew, early enough for that moment."""
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
        """A Snapshot of each moment up to this one at which the recorder read something, and in between
        where it read nothing for long. With `every_ns`, of so many ns together.
        """
        while self._next is not None and self._next.at_ns <= upto_ns:
            at_ns = min(max(self._next.at_ns, self._now_ns + every_ns), upto_ns)
            while at_ns - self._now_ns > max(GAP_NS, every_ns):
                self._now_ns += GAP_NS
                yield self._session_tick()
            self._now_ns = max(self._now_ns, at_ns)
            while self._next is not None and self._next.at_ns <= self._now_ns:
                batch, self._next = self._next, next(self._batches, None)
                self._hosts[batch.node].take(batch)
            yield self._session_tick()
        while self._next is not None and upto_ns - self._now_ns > GAP_NS:
            self._now_ns += GAP_NS
            yield self._session_tick()

    def _session_tick(self) -> Snapshot:
        self._latest = replace(self._session.tick(), recorded=True)
        return self._latest


def _without_repeats(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Leave out keyframes but where a reader begins with one, and where batches before it were lost."""
    wanted = applied = False
    for at, batch in enumerate(batches):
        wanted = wanted or batch.after_gap or (at == 0 and batch.kind == STATE)
        if batch.kind != STATE:
            if applied and batch.kind == LIVE:
                wanted = applied = False
            yield batch
        elif wanted:
            applied = True
            yield batch


def _record_of(welcome: Welcome) -> JobRecord:
    """As much of a job's record as its recording tells."""
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
