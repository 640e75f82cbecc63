"""The commands given to this job, and the outcomes that its hub publishes. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from overlaptop.hub.executions import ANSWER_S, CommandProgress, merged
from overlaptop.timeline import ratios
from overlaptop.wire.commands import (
    ACCEPTED,
    ENDED,
    RESTORE,
    SILENT,
    TRIAL,
    WRITTEN,
    Command,
    CommandOutcome,
    argument,
    describe,
)
from overlaptop.wire.commands import FAILED as FAILED
from overlaptop.wire.commands import SENT as SENT
from overlaptop.wire.messages import StepTotals

MAX_COMMANDS = 128
"""Commands kept. Trials are dropped first."""
UNANSWERED_NS = round(ANSWER_S * 1e9)
LIVE_STEPS = 32
"""Measured steps before a command acts, as the baseline for its effect."""
STAGES = (SENT, ACCEPTED, "agreed", "recording", "writing", WRITTEN)
"""The stages of a successful capture, in order."""

StepsOf = Callable[[int], Sequence[StepTotals]]
"""Returns the known steps of a rank, oldest first."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One rank's part in a command."""

    rank: int
    state: str
    text: str
    """``written``: the file. ``changed``: both values. After a failure: the reason."""
    live_overlap: float | None
    """Hidden over communication time of the measured steps just before. None if none was measured."""
    live_steps: int
    """Steps in ``live_overlap``, at most LIVE_STEPS."""


@dataclass(frozen=True, slots=True)
class CommandView:
    """One command and its progress. Fields shared with Command and CommandOutcome mean the same."""

    command: Command
    outcome: CommandOutcome
    ranks: tuple[RankProgress, ...]
    """Every rank that should report, or did."""
    id: str
    name: str
    by: str
    at_ns: int
    knob: str
    value: int | None
    """New value of a knob, or the value to try. None: the script's own value, or no knob."""
    words: str
    """``capture (steps 5)``."""
    state: str
    """The outcome's stage."""
    reason: str
    step: int | None
    done: bool
    old: str
    new: str
    busy: bool
    """Another command was running when this one came."""


@dataclass(slots=True)
class _Entry:
    command: Command | None = None
    outcome: CommandOutcome | None = None
    """Newest outcome from the hub. None before the first."""
    live: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Overlap and number of the steps just before, by rank."""
    view: CommandView | None = None
    """View of `outcome`, until a newer one comes."""


class CommandBook:
    """Keeps Commands and CommandOutcomes. They may come in any order, and repeatedly."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._forgotten: deque[str] = deque(maxlen=MAX_COMMANDS)
        """Ids of commands to processes that have gone. A hub may publish them again."""

    def clear(self) -> None:
        self._entries.clear()
        self._forgotten.clear()

    def forget(self, rank: int) -> None:
        """Drop the commands that this rank reported on: another process has taken its place."""
        for key, entry in list(self._entries.items()):
            reported = entry.outcome.ranks if entry.outcome is not None else ()
            if any(each.rank == rank and each.reported != SENT for each in reported):
                del self._entries[key]
                self._forgotten.append(key)

    def add(self, command: Command) -> None:
        """Add a command. The hub sends it a second time, with the hub's time."""
        if (entry := self._entry(command.id)) is not None:
            entry.command, entry.view = command, None

    def take(self, outcome: CommandOutcome, steps_of: StepsOf) -> None:
        if (entry := self._entry(outcome.command)) is None:
            return
        before = frozenset(entry.outcome.ranks if entry.outcome is not None else ())
        entry.outcome, entry.view = outcome, None
        if outcome.step is None:
            return
        for each in outcome.ranks:
            # Steps arrive a little late, and old ones are dropped: keep the look that saw the most steps.
            if each not in before or each.rank not in entry.live:
                found = _live(steps_of(each.rank), outcome.step)
                if found is not None and found[1] >= entry.live.get(each.rank, (0.0, 1))[1]:
                    entry.live[each.rank] = found

    def views(self, running: Iterable[int], now_ns: int, *, over: bool) -> tuple[CommandView, ...]:
        """Return all commands, oldest first. ``running``: ranks seen and not ended. ``now_ns``: Unix time.
        ``over``: job and hub have gone, so nothing more will be published.
        """
        running = tuple(running)
        made = [
            _view(entry, entry.command, running, now_ns, over=over)
            for entry in self._entries.values()
            if entry.command is not None
        ]
        # A command sent from here may be in the book before the hub's history of earlier ones arrives.
        return tuple(sorted(made, key=lambda view: view.at_ns))

    def _entry(self, key: str) -> _Entry | None:
        if key in self._forgotten:
            return None
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= MAX_COMMANDS:
                trials = (
                    each
                    for each, known in self._entries.items()
                    if known.command and known.command.name == TRIAL
                )
                del self._entries[next(trials, next(iter(self._entries)))]
            entry = self._entries[key] = _Entry()
        return entry


def together(views: Sequence[CommandView], unreachable: Mapping[int, str]) -> CommandView:
    """Merge the views of several nodes' hubs, at least one. ``unreachable``: ranks, and why."""
    command = replace(views[0].command, at_ns=min(view.at_ns for view in views))
    outcome = merged(command, [view.outcome for view in views], unreachable)
    live = {each.rank: (each.live_overlap, each.live_steps) for view in views for each in view.ranks}
    return _made(command, outcome, live)


def _view(
    entry: _Entry, command: Command, running: Iterable[int], now_ns: int, *, over: bool
) -> CommandView:
    outcome = entry.outcome
    if outcome is None:
        execution = CommandProgress.begin(command, running)
        if now_ns - command.at_ns > UNANSWERED_NS:
            execution.lose_all(SILENT)
            outcome = execution.outcome()
        else:
            outcome = execution.unanswered()
        return _made(command, outcome, {})
    if over and not outcome.done:
        execution = CommandProgress.resume(command, outcome)
        execution.lose_all(ENDED)
        outcome = execution.outcome()
        return _made(command, outcome, entry.live)
    if entry.view is None:
        entry.view = _made(command, outcome, entry.live)
    return entry.view


def _made(
    command: Command, outcome: CommandOutcome, live: Mapping[int, tuple[float | None, int]]
) -> CommandView:
    return CommandView(
        command,
        outcome,
        tuple(
            RankProgress(each.rank, each.state, each.text, *live.get(each.rank, (None, 0)))
            for each in outcome.ranks
        ),
        id=command.id,
        name=command.name,
        by=command.by,
        at_ns=command.at_ns,
        knob=command.knob,
        value=argument(command, "value") if command.knob and command.name != RESTORE else None,
        words=describe(command),
        state=outcome.stage,
        reason=outcome.reason,
        step=outcome.step,
        done=outcome.done,
        old=outcome.old,
        new=outcome.new,
        busy=any(each.state == "busy" for each in outcome.ranks),
    )


def _live(steps: Sequence[StepTotals], before: int) -> tuple[float, int] | None:
    """Return the overlap of the last measured steps before this one, and their number. None without any."""
    measured = (step for step in reversed(steps) if step.step < before and step.comm_ns)
    seen = list(islice(measured, LIVE_STEPS))
    hidden_ns = sum(step.hidden_ns or 0 for step in seen)
    found = ratios.overlap(hidden_ns, sum(step.comm_ns or 0 for step in seen))
    return None if found is None else (found, len(seen))
