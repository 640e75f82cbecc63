"""A command given to the job, with its outcome. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from overlaptop.hub.executions import ANSWER_S, merged
from overlaptop.wire.commands import FAILED as FAILED
from overlaptop.wire.commands import (
    RESTORE,
    Command,
    CommandOutcome,
    RankOutcome,
    argument,
    describe,
)
from overlaptop.wire.commands import SENT as SENT

MAX_COMMANDS = 128  # Commands kept. Trials are dropped first.
UNANSWERED_NS = round(ANSWER_S * 1e9)


class LiveOverlap(NamedTuple):
    """Hidden over communication time of a rank's measured steps just before a command acts."""

    overlap: float
    steps: int  # Measured steps behind it


@dataclass(frozen=True, slots=True)
class CommandView:
    """One command and its progress. Fields shared with Command and CommandOutcome mean the same."""

    command: Command
    outcome: CommandOutcome
    live: Mapping[int, LiveOverlap]  # By rank with measured steps before
    ranks: tuple[RankOutcome, ...]  # Every rank that should report, or did
    id: str
    name: str
    by: str
    at_ns: int
    knob: str
    value: int | None  # New value of a knob, or the value to try. None: the script's own value, or no knob.
    words: str  # ``capture (steps 5)``
    state: str  # The outcome's stage
    reason: str
    step: int | None
    done: bool
    old: str
    new: str
    busy: bool  # Another command was running when this one came

    @classmethod
    def of(
        cls, command: Command, outcome: CommandOutcome, live: Mapping[int, LiveOverlap]
    ) -> "CommandView":
        return cls(
            command,
            outcome,
            dict(live),
            outcome.ranks,
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


def together(views: Sequence[CommandView], unreachable: Mapping[int, str]) -> CommandView:
    """Merge the views of several nodes' hubs, at least one. ``unreachable``: ranks, and why."""
    command = replace(views[0].command, at_ns=min(view.at_ns for view in views))
    outcome = merged(command, [view.outcome for view in views], unreachable)
    return CommandView.of(command, outcome, dict(chain.from_iterable(view.live.items() for view in views)))
