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
SAY_AGAIN_NS = 10_000_000_000  # A finding that still holds is written again after this time


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


def _warned(snapshot: Snapshot) -> list[Notice]:
    """Return the last restart, and each process whose figures are missing."""
    restart = last_restart(snapshot.notices)
    not_shown = [notice for notice in snapshot.notices if NOT_SHOWN in notice.text]
    return not_shown if restart is None else [restart, *not_shown]


def warnings(snapshot: Snapshot) -> list[str]:
    """Return a line for the last restart, and one for each process whose figures are missing."""
    lines = []
    for notice in _warned(snapshot):
        at = "" if NOT_SHOWN in notice.text else f"at {text.clock(notice.at_ns)} "
        lines.append(text.printable(at + notice.text))
    return lines


class TroubleLog:
    """Decides when troubles and warnings of a running job are written: each as it appears or changes."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] | None = None
        self._told: set[str] = set()

    def due(self, snapshot: Snapshot) -> list[Record]:
        if snapshot.replaying or snapshot.job is None:
            return []
        job = snapshot.job.job
        warned = {notice.text: notice for notice in _warned(snapshot)}
        records: list[Record] = [
            notice_record(job, notice) for words, notice in warned.items() if words not in self._told
        ]
        self._told = set(warned)
        found = trouble_of(snapshot)
        key = (found.kind, found.ranks, found.hang) if found is not None else None
        if found is not None and key != self._last:
            records.append(troubles.record(job, found))
        self._last = key
        return records
