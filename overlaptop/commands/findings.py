"""A job's findings, troubles and warnings, as text and as records."""

from overlaptop import text
from overlaptop.findings.find import find
from overlaptop.findings.finding import Finding, Key, by_key, evidence_of
from overlaptop.findings.watch import FindingsWatch
from overlaptop.fleet.notices import last_restart
from overlaptop.fleet.records import notice_record
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.records import FindingRecord, Record
from overlaptop.report import troubles
from overlaptop.wire.messages import NOT_SHOWN, Notice

LOOK_EVERY_NS = 1_000_000_000
SAY_AGAIN_NS = 10_000_000_000
"""A finding that still holds is written again after this time."""


def found_in(snapshot: Snapshot) -> tuple[Finding, ...]:
    return find(evidence_of(snapshot))


def in_a_line(found: tuple[Finding, ...]) -> str:
    """Return such as ``2 findings, first: rank 2 computes 12.1 ms a step longer than the others``."""
    first = ", first" if len(found) > 1 else ""
    return f"{text.plural(len(found), 'finding')}{first}: {text.printable(found[0].headline)}"


def render(found: tuple[Finding, ...]) -> str:
    lines = []
    for each in found:
        gain = f"at most {text.duration(each.gain_ns)} a step to win" if each.gain_ns else ""
        lines += [
            f"{each.title} ({', '.join(filter(None, (gain, each.certainty.value, each.rule)))})",
            f"  measured: {each.measured}",
            f"  advice: {each.advice}",
        ]
    return "\n".join(map(text.printable, lines))


class FindingsLog:
    """Decides when findings of a running job are written: once each has held, and again while it holds."""

    def __init__(self) -> None:
        self._watch = FindingsWatch(LOOK_EVERY_NS)
        self._written_ns: dict[Key, int] = {}

    def due(self, snapshot: Snapshot) -> list[FindingRecord]:
        records = []
        look = self._watch.look(snapshot)
        for key, each in by_key(look.shown if look else ()).items():
            assert snapshot.job is not None, "else there is no look"
            if snapshot.at_ns - self._written_ns.get(key, 0) >= SAY_AGAIN_NS:
                self._written_ns[key] = snapshot.at_ns
                records.append(each.record(snapshot.job.job))
        return records


def warnings(snapshot: Snapshot) -> list[str]:
    """Return a line for the last restart, and one for each process whose figures are missing."""
    restart = last_restart(snapshot.notices)
    restarted = [] if restart is None else [f"at {text.clock(restart.at_ns)} {restart.text}"]
    return [text.printable(each) for each in (*restarted, *(each.text for each in _not_shown(snapshot)))]


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
            for words, notice in warned.items()
            if words not in self._told
        ]
        self._told = set(warned)
        found = trouble_of(snapshot)
        key = (found.kind, found.ranks, found.hang) if found is not None else None
        if found is not None and key != self._last:
            records.append(troubles.record(snapshot.job.job, found))
        self._last = key
        return records
