"""FinishedSession: what is known of a job that is over and was read from files, behind a Session's face."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from overlaptop.fleet.fleet import MAX_RANKS, Fleet
from overlaptop.fleet.snapshot import LinkState, Snapshot
from overlaptop.wire.endpoints import JobRecord
from overlaptop.wire.knobs import Search
from overlaptop.wire.messages import Command, Message, RankInfo, Welcome

_OVER = "this is the trace of a job that is over: there is nobody to tell"


class FinishedSession:
    """One picture that never changes. Time stands still in it, so nothing in it grows old."""

    def __init__(self, welcome: Welcome, messages: Iterable[Message], now_ns: int) -> None:
        """`messages` as a hub would have sent them; `now_ns` is the Unix time of the picture.

        Raises:
            ValueError: a rank's number is beyond what a Fleet takes.
        """
        fleet = Fleet(lambda: now_ns)
        fleet.apply(welcome)
        told = set()
        for message in messages:
            fleet.apply(message)
            if isinstance(message, RankInfo):
                told.add(message.rank)
        fleet.set_link(LinkState.TRACE)
        whole = fleet.snapshot()
        # A live job's ranks that were announced and never seen may still come. These will not.
        seen = tuple(view for view in whole.ranks if view.info is not None)
        if len(seen) < len(told):
            raise ValueError(f"rank {max(told)}: only ranks below {MAX_RANKS:,} can be shown, use --json")
        self._snapshot = replace(whole, ranks=seen, fresh=())
        self._key = welcome.job

    @property
    def jobs(self) -> tuple[JobRecord, ...]:
        """There is no other."""
        return ()

    @property
    def job_key(self) -> str:
        """Of the job that was read."""
        return self._key

    def tick(self) -> Snapshot:
        """The picture."""
        return self._snapshot

    def watch(self, ranks: Collection[int]) -> None:
        """All timelines are there already."""

    def select(self, key: str) -> None:
        """There is no other job to turn to."""

    def send(self, command: Command) -> str:
        """Nobody would hear it."""
        del command
        return _OVER

    def hold(self, search: Search) -> str:
        """Nor that."""
        del search
        return _OVER

    def close(self) -> None:
        """Nothing is open."""
