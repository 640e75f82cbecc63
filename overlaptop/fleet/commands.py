"""What became of the commands that this job was given: each rank's word, and what they amount to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from overlaptop.wire.commands import SET, argument, in_words
from overlaptop.wire.commands import reason as why
from overlaptop.wire.messages import (
    ENDED_BADLY,
    ENDED_WELL,
    REPORT_STATES,
    UNDER_WAY,
    WRITTEN,
    Command,
    CommandReport,
    StepTotals,
)

MAX_COMMANDS = 128
"""Where there are more, those of searches go first."""
UNANSWERED_NS = 15_000_000_000
"""Longer than ranks wait for each other: past that one that has said nothing will say nothing."""
LIVE_STEPS = 32
"""Measured steps before a command acts that what comes of it is compared with."""

SENT = "sent"
STAGES = (SENT, "accepted", "agreed", "recording", "writing", WRITTEN)
"""The way of a capture that goes well."""
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One rank's newest word on a command."""

    rank: int
    state: str
    """One of REPORT_STATES; ``sent`` while the rank has said nothing."""
    text: str
    """``written``: the file. ``changed``: from what to what. Where it ended badly: why."""
    live_overlap: float | None
    """Sum of hidden over sum of comm of the measured steps just before; None where none was measured."""
    live_steps: int
    """How many steps that is from, at most LIVE_STEPS."""


@dataclass(frozen=True, slots=True)
class CommandView:
    """One command and how far it is."""

    id: str
    name: str
    words: str
    """``capture (steps 5)``."""
    by: str
    """Who asked; empty where nobody said."""
    at_ns: int
    """Unix time."""
    state: str
    """As of a rank: what the slowest one has reached; ``failed`` as soon as one did."""
    reason: str
    """Why it failed, with the number of the rank; else empty."""
    step: int | None
    """The step from which on all ranks act."""
    done: bool
    """Nothing more is to come."""
    ranks: tuple[RankProgress, ...]
    """Every rank that was expected to answer, or did."""
    knob: str = ""
    """What was to be changed; empty for other commands."""
    value: int | None = None
    """What it was to be set to; None: to the value that the script gave, or no knob at all."""
    search: str = ""
    """Id of the search that it belongs to; empty: a person asked."""
    was: str = ""
    """Once it is changed: the value before."""
    becomes: str = ""
    """Once it is changed: the value since."""

    @property
    def busy(self) -> bool:
        """It came while another command was under way."""
        return any(each.state == "busy" for each in self.ranks)


@dataclass(slots=True)
class _Entry:
    command: Command | None
    name: str
    at_ns: int
    reports: dict[int, CommandReport]
    live: dict[int, tuple[float, int]]
    ended: CommandView | None = None
    """Its view once nothing more was to come, till something comes after all."""


class CommandBook:
    """Folds Command and CommandReport in, in whatever order and however often they come."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def clear(self) -> None:
        """Forget all: another job."""
        self._entries.clear()

    def add(self, command: Command) -> None:
        """A command was given; heard a second time, from the hub, it carries the hub's time."""
        entry = self._entry(command.id, command.name, command.at_ns)
        entry.command, entry.at_ns, entry.ended = command, command.at_ns, None

    def report(self, report: CommandReport, before: Iterable[StepTotals]) -> None:
        """A rank's word. ``before``: the steps that are known of it, oldest first."""
        entry = self._entry(report.command, report.name, report.at_ns)
        entry.ended = None
        earlier = entry.reports.get(report.rank)
        if earlier is None or _place(report) >= _place(earlier):
            entry.reports[report.rank] = report
        if report.step is not None:
            # Steps come a little late, and old ones are forgotten: the last look that saw the most counts.
            seen = [step for step in before if step.step < report.step and step.comm_ns][-LIVE_STEPS:]
            if len(seen) >= entry.live.get(report.rank, (0.0, 1))[1]:
                comm_ns = sum(step.comm_ns or 0 for step in seen)
                hidden_ns = sum(step.hidden_ns or 0 for step in seen)
                entry.live[report.rank] = (hidden_ns / comm_ns, len(seen))

    def views(self, running: Mapping[int, bool], now_ns: int) -> tuple[CommandView, ...]:
        """All commands, oldest first. ``running``: the ranks that have been seen, False for ended ones."""
        # What is asked here may be in the book before the hub's history of earlier ones has come.
        entries = sorted(self._entries.items(), key=lambda item: item[1].at_ns)
        return tuple(self._view(key, entry, running, now_ns) for key, entry in entries)

    def _view(self, key: str, entry: _Entry, running: Mapping[int, bool], now_ns: int) -> CommandView:
        # Of those that have ended there may be many, and a view is made for every snapshot.
        if entry.ended is None:
            made = _view(key, entry, running, now_ns)
            if not made.done:
                return made
            entry.ended = made
        return entry.ended

    def _is_searched(self, key: str) -> bool:
        command = self._entries[key].command
        return command is not None and bool(command.search)

    def _entry(self, key: str, name: str, at_ns: int) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(None, name, at_ns, {}, {})
            if len(self._entries) > MAX_COMMANDS:
                others = [each for each in self._entries if each != key]
                searched = (each for each in others if self._is_searched(each))
                del self._entries[next(searched, others[0])]
        return entry


def _place(report: CommandReport) -> int:
    """Where a report stands on the way; the thread that acts may speak before the one that agrees."""
    return REPORT_STATES.index(report.state)


def _view(key: str, entry: _Entry, running: Mapping[int, bool], now_ns: int) -> CommandView:
    ranks = tuple(
        _progress(rank, entry, running, now_ns)
        for rank in sorted(entry.reports.keys() | {rank for rank, runs in running.items() if runs})
    )
    bad = [each for each in ranks if each.state in ENDED_BADLY]
    last_words = (*ENDED_BADLY, *ENDED_WELL)
    state, reason = FAILED if bad else SENT, ""
    if bad:
        reason = why((each.rank, each.state, each.text) for each in bad)
    elif ranks:
        state = min((each.state for each in ranks), key=(SENT, *UNDER_WAY, *ENDED_WELL).index)
    elif now_ns - entry.at_ns > UNANSWERED_NS:
        state, reason = FAILED, "no rank is there to answer"
    steps = [report.step for report in entry.reports.values() if report.step is not None]
    return CommandView(
        id=key,
        name=entry.name,
        words=in_words(entry.command) if entry.command is not None else entry.name,
        by=entry.command.by if entry.command is not None else "",
        at_ns=entry.at_ns,
        state=state,
        reason=reason,
        step=max(steps, default=None),
        done=all(each.state in last_words for each in ranks) if ranks else state == FAILED,
        ranks=ranks,
        knob=entry.command.knob if entry.command is not None else "",
        value=_value(entry.command),
        search=entry.command.search if entry.command is not None else "",
        was=next((report.was for report in entry.reports.values() if report.was), ""),
        becomes=next((report.becomes for report in entry.reports.values() if report.becomes), ""),
    )


def _value(command: Command | None) -> int | None:
    return argument(command, "value") if command is not None and command.name == SET else None


def _progress(rank: int, entry: _Entry, running: Mapping[int, bool], now_ns: int) -> RankProgress:
    report = entry.reports.get(rank)
    state, text = (report.state, report.text) if report is not None else (SENT, "")
    if state not in (*ENDED_BADLY, *ENDED_WELL):
        if not running.get(rank, True):
            state, text = FAILED, f"rank {rank} ended before it was done"
        elif state == SENT and now_ns - entry.at_ns > UNANSWERED_NS:
            state, text = FAILED, f"rank {rank} does not answer"
    live, steps = entry.live.get(rank, (None, 0))
    return RankProgress(rank, state, text, live, steps)
