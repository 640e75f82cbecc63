"""A job's troubles and warnings: records of ``--json``, lines of ``--once``."""

from overlaptop.fleet.notices import last_restart
from overlaptop.fleet.records import notice_record
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.records import Record
from overlaptop.report import troubles
from overlaptop.text import clock, printable
from overlaptop.wire.messages import NOT_SHOWN, Notice


def warnings(snapshot: Snapshot) -> list[str]:
    """Return a line for the last restart, and one for each process whose figures are missing."""
    restart = last_restart(snapshot.notices)
    restarted = [] if restart is None else [f"at {clock(restart.at_ns)} {restart.text}"]
    return [printable(each) for each in (*restarted, *(each.text for each in _not_shown(snapshot)))]


def _not_shown(snapshot: Snapshot) -> list[Notice]:
    return [notice for notice in snapshot.notices if NOT_SHOWN in notice.text]


class TroubleLog:
    """Decides when troubles and warnings of a running job are written: each as it appears or changes."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] | None = None
        self._told: set[str] = set()

    def due(self, snapshot: Snapshot) -> list[Record]:
        if snapshot.replaying or snapshot.job is None:
            return []
        restart = last_restart(snapshot.notices)
        noticed = (*([restart] if restart is not None else []), *_not_shown(snapshot))
        warned = {notice.text: notice for notice in noticed}
        records: list[Record] = [
            notice_record(snapshot.job.job, notice)
            for text, notice in warned.items()
            if text not in self._told
        ]
        self._told = set(warned)
        found = trouble_of(snapshot)
        key = (found.kind, found.ranks, found.hang) if found is not None else None
        if found is not None and key != self._last:
            records.append(troubles.record(snapshot.job.job, found))
        self._last = key
        return records
