"""What became of each command that the hub passed on, taken together from its ranks' words."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from overlaptop.wire import commands
from overlaptop.wire.change_log import CHANGED, UNKNOWN
from overlaptop.wire.hub_history import FromRank
from overlaptop.wire.knobs import Knob, KnobFacts
from overlaptop.wire.messages import ENDED_BADLY, ENDED_WELL, Command, CommandReport, RankEnd

ANSWER_S = 15.0
"""Longer than ranks wait for each other: past that one that has said nothing will say nothing."""
END_S = 600.0
"""Since a rank's last word. Past that it is not waited for: it hangs, or its steps take minutes."""
_MAX_UNDER_WAY = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, on all ranks of this node together."""

    command: Command
    outcome: str
    """One of change_log.OUTCOMES; of a capture that went well: ``written``."""
    reason: str
    was: str | None
    """Of a change, the value before; None: not known."""
    becomes: str | None
    """The value since, or that which was asked for and not made."""
    step: int | None


@dataclass(slots=True)
class _UnderWay:
    command: Command
    waited_for: set[int]
    heard_s: float
    knob: Knob | None
    """As it was when the command was passed on."""
    answered: set[int] = field(default_factory=set)
    ends: dict[int, CommandReport] = field(default_factory=dict)
    losses: list[tuple[int, str]] = field(default_factory=list)
    """Ranks of which nothing more will be heard, and why."""


class ChangesUnderWay:
    """The commands that have not come to their end on every rank. Times are those of a monotonic clock."""

    def __init__(self, ended: Callable[[Outcome], None]) -> None:
        self._ended = ended
        self._entries: dict[str, _UnderWay] = {}
        self._told_by: int | None = None
        self._knobs: dict[str, Knob] = {}
        """As the lowest rank describes them."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def of_search(self) -> bool:
        """Whether one of them is a search's."""
        return any(entry.command.search for entry in self._entries.values())

    def begin(self, command: Command, ranks: Collection[int], now_s: float) -> None:
        """A command is passed on to these ranks."""
        if len(self._entries) >= _MAX_UNDER_WAY:
            self._end(next(iter(self._entries)), unknown="too many commands were under way")
        knob = self._knobs.get(command.knob)
        self._entries[command.id] = _UnderWay(command, set(ranks), now_s, knob)
        self._end_where_all_ended()

    def hear(self, message: FromRank, now_s: float) -> None:
        """Take a rank's word, or the hub's in its name."""
        match message:
            case KnobFacts() if self._told_by is None or message.rank <= self._told_by:
                self._told_by = message.rank
                self._knobs = {knob.name: knob for knob in message.knobs}
            case CommandReport() if (entry := self._entries.get(message.command)) is not None:
                entry.heard_s = now_s
                entry.answered.add(message.rank)
                if message.state in (*ENDED_WELL, *ENDED_BADLY):
                    entry.waited_for.discard(message.rank)
                    entry.ends[message.rank] = message
            case RankEnd():
                self._lose(message.rank, f"rank {message.rank} ended before it was done")
                if message.rank == self._told_by:
                    self._told_by = None
            case _:
                return
        self._end_where_all_ended()

    def tick(self, now_s: float) -> None:
        """Once a second: wait no longer for ranks that say nothing."""
        for entry in self._entries.values():
            silent_s = now_s - entry.heard_s
            for rank in sorted(entry.waited_for):
                if silent_s > (END_S if rank in entry.answered else ANSWER_S):
                    entry.waited_for.discard(rank)
                    entry.losses.append((rank, f"rank {rank} does not answer"))
        self._end_where_all_ended()

    def extend(self, lost_s: float) -> None:
        """After a time in which the hub itself could not listen."""
        for entry in self._entries.values():
            entry.heard_s += lost_s

    def close(self) -> None:
        """The hub ends first."""
        while self._entries:
            self._end(next(iter(self._entries)), unknown="the hub ended first")

    def _lose(self, rank: int, why: str) -> None:
        for entry in self._entries.values():
            if rank in entry.waited_for:
                entry.waited_for.discard(rank)
                entry.losses.append((rank, why))

    def _end_where_all_ended(self) -> None:
        # One at a time: whoever is told of an end may begin another, and be here again.
        while done := next((key for key, entry in self._entries.items() if not entry.waited_for), None):
            self._end(done)

    def _end(self, key: str, unknown: str = "") -> None:
        entry = self._entries.pop(key)
        ends = [entry.ends[rank] for rank in sorted(entry.ends)]
        bad = [(each.rank, each.state, each.text) for each in ends if each.state in ENDED_BADLY]
        bad += [(rank, "failed", why) for rank, why in entry.losses]
        if unknown:
            outcome, reason = UNKNOWN, unknown
        elif bad:
            states = {state for _, state, _ in bad}
            # What one rank refuses fails on the others.
            outcome = next(state for state in ("refused", "busy", "failed") if state in states)
            reason = commands.reason(bad)
        elif ends:
            outcome, reason = ends[0].state, ""
        else:
            outcome, reason = "failed", "no rank is there to answer"
        was, becomes = _values(entry)
        if outcome == CHANGED:
            was = next((each.was for each in ends if each.was), was)
            becomes = next((each.becomes for each in ends if each.becomes), becomes)
        steps = [each.step for each in ends if each.step is not None]
        self._ended(Outcome(entry.command, outcome, reason, was, becomes, max(steps, default=None)))


def _values(entry: _UnderWay) -> tuple[str | None, str | None]:
    """The present value and the one that is asked for, as far as they are known."""
    knob = entry.knob
    if entry.command.name == commands.SET:
        wanted: str | None = str(commands.argument(entry.command, "value"))
    else:
        wanted = (knob.original_text or None) if knob is not None else None
    return (knob.value_text or None) if knob is not None else None, wanted
