"""What became of each command that the hub passed on, taken together from its ranks' words.

A rank whose connection breaks, or that says nothing, may have made a change all the same. Then it is not
known what became of it; and a rank that says so later is believed. A hub that takes the place of another
finds in the job's folder which changes were under way, and hears the rest from the ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from overlaptop.hub.history import MAX_RANKS, FromRank
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.endpoints import read_regular
from overlaptop.wire.knobs import Knob, KnobFacts
from overlaptop.wire.messages import (
    CHANGED,
    ENDED_BADLY,
    ENDED_WELL,
    UNKNOWN,
    Command,
    CommandReport,
    RankEnd,
    RankInfo,
)
from overlaptop.wire.outcome import ANSWER_S, doubt, is_in_doubt, of_lost

END_S = 600.0
"""Since a rank's last word. Past that it is not waited for: it hangs, or its steps take minutes."""
_MAX_UNDER_WAY = 64
_MAX_FILE_BYTES = 1 << 18
_LAST_WORDS = (*ENDED_WELL, *ENDED_BADLY)


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
    newest: dict[int, CommandReport] = field(default_factory=dict)
    """Each rank's newest word."""
    lost: dict[int, bool] = field(default_factory=dict)
    """Ranks of which nothing more may be heard, and whether they have ended."""
    told: str = ""
    """The outcome that was told of it when it ended without all words."""

    def lose(self, rank: int, *, ended: bool) -> None:
        if rank in self.waited_for or rank in self.lost:
            self.waited_for.discard(rank)
            self.lost[rank] = ended

    def hear(self, report: CommandReport) -> None:
        self.newest[report.rank] = report
        self.lost.pop(report.rank, None)
        if report.state in _LAST_WORDS:
            self.waited_for.discard(report.rank)
        elif report.state == UNKNOWN:
            self.waited_for.discard(report.rank)
            self.lost[report.rank] = False
        else:
            self.waited_for.add(report.rank)


class ChangesUnderWay:
    """The commands that have not come to their end on every rank. Times are those of a monotonic clock."""

    def __init__(self, ended: Callable[[Outcome], None], path: Path, now_s: float) -> None:
        """``ended``: told how a command ended, and once more where that turns out to be otherwise.

        ``path``: where changes that are under way are kept for the hub that comes after this one.
        """
        self._ended = ended
        self._path = path
        self._doubtful: dict[str, _UnderWay] = {}
        """Those that ended without the last words of all ranks."""
        self._told_by: int | None = None
        self._knobs: dict[str, Knob] = {}
        """As the lowest rank describes them."""
        self._pids: dict[int, int] = {}
        self._entries: dict[str, _UnderWay] = {
            command.id: _UnderWay(command, ranks, now_s, None) for command, ranks in _kept(path)
        }
        """By the command's id."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def of_search(self) -> bool:
        """Whether one of them is a search's."""
        return any(entry.command.search for entry in self._entries.values())

    @property
    def commands(self) -> tuple[Command, ...]:
        """Those that are under way, oldest first."""
        return tuple(entry.command for entry in self._entries.values())

    def begin(self, command: Command, ranks: Collection[int], now_s: float) -> None:
        """A command is passed on to these ranks."""
        if len(self._entries) >= _MAX_UNDER_WAY:
            self._end(next(iter(self._entries)), unknown="too many commands were under way")
        knob = self._knobs.get(command.knob)
        self._entries[command.id] = _UnderWay(command, set(ranks), now_s, knob)
        self._keep()
        self._end_where_all_ended()

    def hear(self, message: FromRank, now_s: float) -> None:
        """Take a rank's word, or the hub's in its name."""
        match message:
            case KnobFacts() if self._told_by is None or message.rank <= self._told_by:
                self._told_by = message.rank
                self._knobs = {knob.name: knob for knob in message.knobs}
            case CommandReport() if (entry := self._entries.get(message.command)) is not None:
                entry.heard_s = now_s
                entry.hear(message)
            case CommandReport() if (entry := self._doubtful.get(message.command)) is not None:
                entry.hear(message)
                self._tell_truth(entry)
            case RankInfo():
                # Another process in the rank's place, while the hub still held the line of the one before.
                if self._pids.get(message.rank, message.pid) != message.pid:
                    self._lose(message.rank)
                self._pids[message.rank] = message.pid
            case RankEnd():
                self._lose(message.rank)
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
                if silent_s > (END_S if rank in entry.newest else ANSWER_S):
                    entry.lose(rank, ended=False)
        self._end_where_all_ended()

    def extend(self, lost_s: float) -> None:
        """After a time in which the hub itself could not listen."""
        for entry in self._entries.values():
            entry.heard_s += lost_s

    def close(self) -> None:
        """The hub ends first."""
        while self._entries:
            self._end(next(iter(self._entries)), unknown="the hub ended first")

    def _lose(self, rank: int) -> None:
        for entry in (*self._entries.values(), *self._doubtful.values()):
            entry.lose(rank, ended=True)

    def _end_where_all_ended(self) -> None:
        # One at a time: whoever is told of an end may begin another, and be here again.
        while done := next((key for key, entry in self._entries.items() if not entry.waited_for), None):
            self._end(done)

    def _end(self, key: str, unknown: str = "") -> None:
        entry = self._entries.pop(key)
        self._keep()
        outcome = _judged(entry, unknown)
        if entry.lost or unknown:
            entry.told = outcome.outcome
            self._doubtful[key] = entry
            if len(self._doubtful) > _MAX_UNDER_WAY:
                del self._doubtful[next(iter(self._doubtful))]
        self._ended(outcome)

    def _tell_truth(self, entry: _UnderWay) -> None:
        """A rank has said after all what came of a command."""
        outcome = _judged(entry)
        if entry.waited_for and outcome.outcome not in ENDED_BADLY:
            return
        if not entry.lost and not entry.waited_for:
            del self._doubtful[entry.command.id]
        if outcome.outcome != entry.told:
            entry.told = outcome.outcome
            self._ended(outcome)

    def _keep(self) -> None:
        # Without the file the next hub knows of nothing that was under way, and logs nothing.
        entries = [
            {
                "command": encode(entry.command).hex(),
                "ranks": sorted(entry.waited_for | entry.newest.keys()),
            }
            for entry in self._entries.values()
            if entry.command.name in commands.CHANGES
        ]
        with suppress(OSError):
            if not entries:
                self._path.unlink(missing_ok=True)
                return
            draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            draft.write_text(json.dumps(entries), encoding="utf-8")
            draft.replace(self._path)


def _judged(entry: _UnderWay, unknown: str = "") -> Outcome:
    """What the ranks' words amount to. ``unknown``: why nobody can know."""
    newest = [entry.newest[rank] for rank in sorted(entry.newest)]
    ends = [each for each in newest if each.state in _LAST_WORDS]
    bad = [(each.rank, each.state, each.text) for each in ends if each.state in ENDED_BADLY]
    in_doubt = is_in_doubt(
        entry.command.name, [each.state for each in newest], all_ended=all(entry.lost.values())
    )
    doubts = []
    for rank, has_ended in sorted(entry.lost.items()):
        said = entry.newest.get(rank)
        if said is not None and said.state == UNKNOWN and not has_ended:
            doubts.append((rank, said.text))
            continue
        state, words = of_lost(rank, ended=has_ended, in_doubt=in_doubt and not bad)
        if state == UNKNOWN:
            doubts.append((rank, words))
        else:
            bad.append((rank, state, words))
    was, becomes = _values(entry)
    if unknown:
        outcome, reason = UNKNOWN, unknown
    elif bad:
        states = {state for _, state, _ in bad}
        # What one rank refuses fails on the others.
        outcome = next(state for state in ("refused", "busy", "failed") if state in states)
        reason = commands.reason(bad, [each.rank for each in ends if each.state == CHANGED])
    elif doubts:
        outcome, reason = UNKNOWN, doubt(doubts)
    elif ends:
        outcome, reason = ends[0].state, ""
    else:
        outcome, reason = "failed", "no rank is there to answer"
    if outcome == CHANGED:
        was = next((each.was for each in ends if each.was), was)
        becomes = next((each.becomes for each in ends if each.becomes), becomes)
    steps = [each.step for each in newest if each.step is not None]
    return Outcome(entry.command, outcome, reason, was, becomes, max(steps, default=None))


def _values(entry: _UnderWay) -> tuple[str | None, str | None]:
    """The present value and the one that is asked for, as far as they are known."""
    knob = entry.knob
    if entry.command.name == commands.SET:
        wanted: str | None = str(commands.argument(entry.command, "value"))
    else:
        wanted = (knob.original_text or None) if knob is not None else None
    return (knob.value_text or None) if knob is not None else None, wanted


def _kept(path: Path) -> Iterable[tuple[Command, set[int]]]:
    """The changes that were under way when the hub before this one died, and the ranks that were told."""
    try:
        entries = json.loads(read_regular(path, _MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return
    for entry in entries[:_MAX_UNDER_WAY] if isinstance(entries, list) else ():
        try:
            command, ranks = decode(bytes.fromhex(entry["command"])), entry["ranks"]
        except (ValueError, TypeError, KeyError, WireError):
            continue
        known = isinstance(ranks, list) and all(
            type(each) is int and 0 <= each < MAX_RANKS for each in ranks
        )
        if isinstance(command, Command) and command.name in commands.CHANGES and known:
            yield command, set(ranks)
