"""What became of the commands that this job was given: each rank's word, and what they amount to. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from overlaptop.wire.commands import CHANGES, SET, argument, in_words
from overlaptop.wire.commands import reason as why
from overlaptop.wire.messages import (
    CHANGED,
    ENDED_BADLY,
    ENDED_WELL,
    REPORT_STATES,
    UNDER_WAY,
    UNKNOWN,
    WRITTEN,
    Command,
    CommandReport,
    StepTotals,
)
from overlaptop.wire.outcome import ANSWER_S, doubt, is_in_doubt, of_lost

MAX_COMMANDS = 128
"""Where there are more, those of searches go first."""
UNANSWERED_NS = round(ANSWER_S * 1e9)
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
    """``written``: the file. ``changed``: from what to what. Where it ended badly, or nobody knows: why."""
    live_overlap: float | None
    """Sum of hidden over sum of comm of the measured steps just before; None where none was measured."""
    live_steps: int
    """How many steps that is from, at most LIVE_STEPS."""
    lost: bool | None = None
    """Its last word is not awaited any more since it has ended (True) or is silent (False). None: it has
    said it, or may still."""


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
    """As of a rank: what the slowest one has reached; ``failed`` as soon as one did. Else ``unknown`` where
    one may have made a change and does not say so: it may still turn out to be made, or not."""
    reason: str
    """Why it failed or is unknown, with the number of the rank; else empty."""
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
        self._forgotten: deque[str] = deque(maxlen=MAX_COMMANDS)
        """Ids of commands to processes that are gone, which a hub may speak of once more."""

    def clear(self) -> None:
        """Forget all: another job."""
        self._entries.clear()
        self._forgotten.clear()

    def forget(self, rank: int) -> None:
        """Another process has taken this rank's place: what was told to the one before holds no more."""
        for key in [key for key, entry in self._entries.items() if rank in entry.reports]:
            del self._entries[key]
            self._forgotten.append(key)

    def add(self, command: Command) -> None:
        """A command was given; heard a second time, from the hub, it carries the hub's time."""
        if command.id in self._forgotten:
            return
        entry = self._entry(command.id, command.name, command.at_ns)
        entry.command, entry.at_ns, entry.ended = command, command.at_ns, None

    def report(self, report: CommandReport, before: Iterable[StepTotals]) -> None:
        """A rank's word. ``before``: the steps that are known of it, oldest first."""
        if report.command in self._forgotten:
            return
        entry = self._entry(report.command, report.name, report.at_ns)
        entry.ended = None
        earlier = entry.reports.get(report.rank)
        if earlier is None or _place(report) >= _place(earlier):
            entry.reports[report.rank] = report
        if report.step is not None:
            # Steps come a little late, and old ones are forgotten: the last look that saw the most counts.
            seen = [step for step in before if step.step < report.step and step.comm_ns][-LIVE_STEPS:]
            comm_ns = sum(step.comm_ns or 0 for step in seen)
            # Nobody has checked that times are not negative.
            if comm_ns and len(seen) >= entry.live.get(report.rank, (0.0, 1))[1]:
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


def together(views: Sequence[CommandView], unreachable: Mapping[int, str]) -> CommandView:
    """One command as the hubs of several nodes know of it, each by its own ranks' words.

    ``views``: one at least. ``unreachable``: ranks that cannot be asked any more, and why; what became of
    the command there is not known, unless they have said their last word.
    """
    first = next((view for view in views if view.by or view.knob), views[0])
    known: dict[int, RankProgress] = {}
    for view in views:
        for each in view.ranks:
            known.setdefault(each.rank, each)
    ends = (*ENDED_BADLY, *ENDED_WELL)
    for rank, words in unreachable.items():
        silent = known.get(rank)
        if silent is not None and silent.lost is None and silent.state not in ends:
            state = UNKNOWN if first.name in CHANGES else FAILED
            known[rank] = replace(silent, state=state, text=words, lost=False)
    # A hub that has lost its ranks cannot know whether those of another node have acted.
    in_doubt = is_in_doubt(
        first.name,
        # The newest word of one that is lost was no more than "accepted", or its hub says "unknown".
        [
            each.state
            for each in known.values()
            if each.state != SENT and (each.lost is None or each.state != FAILED)
        ],
        all_ended=all(
            each.lost for each in known.values() if each.lost is not None or each.state not in ends
        ),
    )
    for rank, each in known.items():
        if in_doubt and each.lost is not None and each.state == FAILED:
            state, text = of_lost(rank, ended=each.lost, in_doubt=True)
            known[rank] = replace(each, state=state, text=text)
    ranks = tuple(known[rank] for rank in sorted(known))
    state, reason, done = _sum_up(ranks, unanswered=all(view.done for view in views))
    return replace(
        first,
        at_ns=min(view.at_ns for view in views),
        state=state,
        reason=reason,
        step=max((view.step for view in views if view.step is not None), default=None),
        done=done,
        ranks=ranks,
        was=next((view.was for view in views if view.was), ""),
        becomes=next((view.becomes for view in views if view.becomes), ""),
    )


def _place(report: CommandReport) -> int:
    """Where a report stands on the way; the thread that acts may speak before the one that agrees."""
    return REPORT_STATES.index(report.state)


def _view(key: str, entry: _Entry, running: Mapping[int, bool], now_ns: int) -> CommandView:
    numbers = sorted(entry.reports.keys() | {rank for rank, runs in running.items() if runs})
    lost = _lost(numbers, entry, running, now_ns)
    in_doubt = is_in_doubt(
        entry.name,
        [report.state for report in entry.reports.values()],
        all_ended=all(lost.get(rank) for rank in numbers if not _has_ended(rank, entry)),
    )
    ranks = tuple(_progress(rank, entry, lost.get(rank), in_doubt) for rank in numbers)
    state, reason, done = _sum_up(ranks, unanswered=now_ns - entry.at_ns > UNANSWERED_NS)
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
        done=done,
        ranks=ranks,
        knob=entry.command.knob if entry.command is not None else "",
        value=_value(entry.command),
        search=entry.command.search if entry.command is not None else "",
        was=next((report.was for report in entry.reports.values() if report.was), ""),
        becomes=next((report.becomes for report in entry.reports.values() if report.becomes), ""),
    )


def _sum_up(ranks: Sequence[RankProgress], *, unanswered: bool) -> tuple[str, str, bool]:
    """State, reason, and whether nothing more is to come. ``unanswered``: that should have come by now."""
    bad = [each for each in ranks if each.state in ENDED_BADLY]
    unknown = [each for each in ranks if each.state == UNKNOWN]
    last_words = (*ENDED_BADLY, *ENDED_WELL, UNKNOWN)
    state, reason = FAILED if bad else UNKNOWN if unknown else SENT, ""
    if bad:
        reason = why(
            ((each.rank, each.state, each.text) for each in bad),
            [each.rank for each in ranks if each.state == CHANGED],
        )
    elif unknown:
        reason = doubt((each.rank, each.text) for each in unknown)
    elif ranks:
        state = min((each.state for each in ranks), key=(SENT, *UNDER_WAY, *ENDED_WELL).index)
    elif unanswered:
        state, reason = FAILED, "no rank is there to answer"
    return state, reason, all(each.state in last_words for each in ranks) if ranks else state == FAILED


def _value(command: Command | None) -> int | None:
    return argument(command, "value") if command is not None and command.name == SET else None


def _has_ended(rank: int, entry: _Entry) -> bool:
    """Whether a rank has said its last word on a command."""
    report = entry.reports.get(rank)
    return report is not None and report.state in (*ENDED_BADLY, *ENDED_WELL)


def _lost(ranks: Iterable[int], entry: _Entry, running: Mapping[int, bool], now_ns: int) -> dict[int, bool]:
    """The ranks that have not said their last word and hardly will, and whether they have ended."""
    unanswered = now_ns - entry.at_ns > UNANSWERED_NS
    return {
        rank: not running.get(rank, True)
        for rank in ranks
        if not _has_ended(rank, entry)
        and (not running.get(rank, True) or (unanswered and rank not in entry.reports))
    }


def _progress(rank: int, entry: _Entry, ended: bool | None, in_doubt: bool) -> RankProgress:
    """``ended``: as `_lost` has it; None: it is not lost."""
    report = entry.reports.get(rank)
    state, text = (report.state, report.text) if report is not None else (SENT, "")
    if ended is not None:
        state, text = of_lost(rank, ended=ended, in_doubt=in_doubt)
    live, steps = entry.live.get(rank, (None, 0))
    return RankProgress(rank, state, text, live, steps, ended)
