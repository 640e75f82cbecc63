"""The commands that a job obeys: a closed list, each argument an integer within bounds.

The one owner of what is allowed. The codec refuses what is not on the way out and on the way in: in the
dashboard, in the hub and in the agent.
"""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import (
    MAX_AUTHOR_CHARS,
    MAX_RANKS,
    Author,
    Count,
    Id,
    Int64,
    Rank,
    Text,
    UnixNs,
    one_of,
)
from overlaptop.wire.knobs import LEAST_VALUE, MOST_VALUE, Knob, is_knob_name
from overlaptop.wire.schema import Message, Part

MAX_ARGUMENTS = 8


CAPTURE = "capture"
"""All ranks run torch.profiler for ``steps`` steps from the same step on, and write a trace each."""

SET = "set"
"""All ranks give one of the job's knobs this ``value``, in the same step."""

RESTORE = "restore"
"""All ranks give one of the job's knobs the value back that the script gave it, in the same step."""

TRIAL = "trial"
"""All ranks try something for ``steps`` steps from the same step on, and take it back by themselves.

With a knob: this ``value`` of it. Without one: a delay of ``delay_ns`` in each of these steps on one
``rank``, at a ``place``. The other ranks do nothing but agree on the steps."""

HOST, GPU = 0, 1
"""Places of a delay: a sleep of the training thread as the step begins, or a kernel that spins on its
current stream."""
PLACES: Mapping[int, str] = MappingProxyType({HOST: "host", GPU: "gpu"})
MAX_TRIAL_STEPS = 1_000
MAX_DELAY_NS = 10_000_000_000
MAX_DELAYS_NS = 60_000_000_000
"""Of all steps of a trial together: nobody can end a trial early."""

_SETTING = range(LEAST_VALUE, MOST_VALUE + 1)
_TRIAL_STEPS = range(1, MAX_TRIAL_STEPS + 1)
COMMANDS: Mapping[str, Mapping[str, range]] = MappingProxyType(
    {
        CAPTURE: MappingProxyType({"steps": range(1, 101)}),
        SET: MappingProxyType({"value": _SETTING}),
        RESTORE: MappingProxyType({}),
        TRIAL: MappingProxyType({"value": _SETTING, "steps": _TRIAL_STEPS}),
    }
)
"""Name -> its arguments, all of which must be there, and what each may be."""
DELAY_ARGUMENTS: Mapping[str, range] = MappingProxyType(
    {
        "rank": range(MAX_RANKS),
        "delay_ns": range(1, MAX_DELAY_NS + 1),
        "place": range(len(PLACES)),
        "steps": _TRIAL_STEPS,
    }
)
"""The same of a trial without a knob."""

CHANGES = (SET, RESTORE)
"""The commands that change a knob for good. Each job has its own knobs: a Knob has the bounds of its
values, and each rank that has it checks them."""
ABOUT_KNOBS = (*CHANGES, TRIAL)
"""The commands that can name a knob; CHANGES must."""


class Argument(Part, frozen=True):
    """One argument of a command; COMMANDS says what it may be."""

    name: Text
    value: Int64


class Command(Message, frozen=True, tag=10):
    """Dashboard -> hub -> every rank of the node and every dashboard: all ranks are to do this from one
    step on, or none.
    """

    id: Id
    """Made by the dashboard, the same for all ranks of a job wherever they run; never used again."""
    name: Text
    """One of COMMANDS."""
    arguments: Annotated[tuple[Argument, ...], Meta(max_length=MAX_ARGUMENTS)]
    by: Author
    """Who asks, as they say themselves: ``user@host, pid 123``."""
    at_ns: UnixNs
    """Unix time at which the hub took it (until then: at which it was made)."""
    knob: Text = ""
    """The name of the Knob that ``set``, ``restore`` or ``trial`` is about; empty: a delay's trial, or no
    command about a knob."""

    def inconsistency(self) -> str:
        """As Part says: what COMMANDS does not allow."""
        allowed = COMMANDS.get(self.name)
        if allowed is None:
            return f"there is no such command; there is: {', '.join(COMMANDS)}"
        if is_delay(self):
            allowed = DELAY_ARGUMENTS
        elif self.name in ABOUT_KNOBS and not is_knob_name(self.knob):
            return f"{self.knob[:80]!r} cannot be a knob's name: letters, digits and _, at most 64"
        elif self.name not in ABOUT_KNOBS and self.knob:
            return f"{self.name} is not about a knob"
        names = [argument.name for argument in self.arguments]
        if sorted(names) != sorted(allowed):
            return f"{self.name} takes exactly: {', '.join(allowed) or 'no argument'}"
        for argument in self.arguments:
            bounds = allowed[argument.name]
            if argument.value not in bounds:
                return f"{argument.name} must be from {bounds[0]} to {bounds[-1]}, not {argument.value}"
        if is_delay(self) and delays_ns(self) > MAX_DELAYS_NS:
            return f"the delays of all steps must be {MAX_DELAYS_NS} ns at most, not {delays_ns(self)}"
        return ""


HOW_TO_ALLOW = "start the job with --control or attach(control=True) to allow"
"""Of a job that obeys no commands; what is to be allowed follows."""
SENT = "sent"
ACCEPTED = "accepted"
UNKNOWN = "unknown"
TRYING = "trying"
UNDER_WAY = (ACCEPTED, UNKNOWN, "agreed", "recording", "writing", "changing", TRYING)
WRITTEN = "written"
CHANGED = "changed"
TRIED = "tried"
FAILED = "failed"
ENDED_WELL = (WRITTEN, CHANGED, TRIED)
ENDED_BADLY = ("refused", "busy", FAILED)
REPORT_STATES = (*UNDER_WAY, *ENDED_WELL, *ENDED_BADLY)
"""What a rank reports of a command, in this order. A capture is ``recording``, ``writing`` and ``written``;
a setting is ``changing`` and ``changed``, a trial ``trying`` and ``tried``. ``unknown``: the rank cannot
learn whether all have agreed; if it ever does, it reports the result."""

STAGES = (SENT, *REPORT_STATES)
"""Of one rank. ``sent``: it has reported nothing yet."""
Stage = Annotated[str, one_of(STAGES)]
PROGRESS = (SENT, *UNDER_WAY, *ENDED_WELL)
"""The stages of a command that goes well, in order."""
OBEYING, OBEYED = "obeying", "obeyed"
OUTCOME_STATES = (SENT, OBEYING, OBEYED, FAILED, UNKNOWN)
"""``sent``: nothing was reported yet. ``obeyed``: by all ranks. ``failed``: as soon as one rank has failed.
``unknown``: a lost rank may have made a change: it may still turn out to be made, or not."""
ENDED, SILENT, UNREACHABLE = "ended", "silent", "unreachable"
LOST = ("", ENDED, SILENT, UNREACHABLE)
"""Why a rank's final report is not awaited any more; empty: it is, or it has come."""


class CommandReport(Message, frozen=True, tag=11):
    """Rank -> hub: how far a command is on this rank, or why it does not carry it out."""

    rank: Rank
    command: Text
    name: Text
    at_ns: UnixNs
    state: Annotated[str, one_of(REPORT_STATES)]
    step: Count | None
    """The step from which on all ranks act, once that is agreed. A trial of n steps is over n steps later.
    """
    text: Text
    """``written``: the file. ``changed``, ``tried``: what was changed. Where it ended badly, or is unknown:
    why."""
    was: Text = ""
    """``changed``: the value before, as Knob.value_text has it. ``tried``: the value before and since."""
    becomes: Text = ""
    """``changed``: the value since. ``tried``: the value that was tried."""


class RankOutcome(Part, frozen=True):
    """One rank's part of a CommandOutcome."""

    rank: Rank
    reported: Stage
    """The rank's newest CommandReport.state; ``sent``: none came."""
    state: Stage
    """The same; of a lost rank ``failed`` or ``unknown``."""
    text: Text
    """As CommandReport.text; of a lost rank: why."""
    lost: Annotated[str, one_of(LOST)] = ""


class CommandOutcome(Message, frozen=True, tag=20):
    """Hub -> every dashboard, whenever it changes: what has become of a command on the hub's ranks.

    Made by outcome.py alone.
    """

    command: Text
    state: Annotated[str, one_of(OUTCOME_STATES)]
    reason: Text
    """Why it failed or is unknown, with the number of the rank; else empty."""
    step: Count | None
    """The step from which on all ranks act."""
    done: bool
    """No rank's report is awaited any more."""
    ranks: Annotated[tuple[RankOutcome, ...], Meta(max_length=MAX_RANKS)]
    """By rank: every one that was expected to report, or did."""
    was: Text = ""
    """As CommandReport has it, once a rank has reported it."""
    becomes: Text = ""

    @property
    def stage(self) -> str:
        """What the slowest rank has reached; of a command that has failed, or may have, the state."""
        if self.state not in (OBEYING, OBEYED):
            return self.state
        # A hub of another version may name no rank, or stages that go another way.
        reached = [PROGRESS.index(each.state) for each in self.ranks if each.state in PROGRESS]
        return PROGRESS[min(reached, default=0)]


def make(name: str, arguments: Mapping[str, int], *, knob: str = "") -> Command:
    """A command of this process's user, made now. Raises ValueError with one line if it is not allowed.

    ``knob`` as in Command. Its id begins with the time in UTC and names the command
    everywhere: to several nodes' hubs, in the job's store and in what the command leaves on disk.
    """
    now_ns = time.time_ns()
    command = Command(
        id=_new_id(now_ns),
        name=name,
        arguments=tuple(Argument(key, value) for key, value in arguments.items()),
        by=_who(),
        at_ns=now_ns,
        knob=knob,
    )
    if why := command.inconsistency():
        raise ValueError(why)
    return command


def make_setting(knob: Knob, value: int) -> Command:
    """The command that sets a knob. Raises ValueError with one line if that value is not allowed."""
    if why := knob.fault(value):
        raise ValueError(why)
    return make(SET, {"value": value}, knob=knob.name)


def make_restoring(knob: Knob) -> Command:
    """The command that gives a knob back the value that the script gave it."""
    return make(RESTORE, {}, knob=knob.name)


def make_trial(knob: Knob, value: int, steps: int) -> Command:
    """The command that tries a knob's value for this many steps. Raises ValueError as `make_setting`."""
    if why := knob.fault(value):
        raise ValueError(why)
    return make(TRIAL, {"value": value, "steps": steps}, knob=knob.name)


def make_delay(rank: int, delay_ns: int, place: int, steps: int) -> Command:
    """The command that delays one rank in each of this many steps. Raises ValueError with one line.

    ``place``: HOST or GPU.
    """
    return make(TRIAL, {"rank": rank, "delay_ns": delay_ns, "place": place, "steps": steps})


def names_a_rank(text: str) -> bool:
    """Whether a rank's text tells of one by name, ``rank 3 does not answer``: the same on all ranks."""
    return text.startswith("rank ")


def argument(command: Command, name: str) -> int:
    """The value of an argument of a command without fault."""
    return next(each.value for each in command.arguments if each.name == name)


def is_delay(command: Command) -> bool:
    """Whether it is the trial of a delay: of no knob's value."""
    return command.name == TRIAL and not command.knob


def delays_ns(command: Command) -> int:
    """The delays of all steps of a delay's trial together."""
    return argument(command, "delay_ns") * argument(command, "steps")


def in_words(command: Command) -> str:
    """``capture (steps 5)``, ``set bucket_cap_mb 50``, ``trial bucket_cap_mb 50 (20 steps)``."""
    if is_delay(command):
        rank, delay_ns, place, steps = (argument(command, name) for name in DELAY_ARGUMENTS)
        return f"trial of {delay_ns / 1e6:g} ms more on rank {rank}'s {PLACES[place]} ({steps} steps)"
    if command.name == TRIAL:
        value, steps = argument(command, "value"), argument(command, "steps")
        return f"{command.name} {command.knob} {value} ({steps} steps)"
    if command.name in CHANGES:
        return " ".join([command.name, command.knob, *(str(each.value) for each in command.arguments)])
    arguments = ", ".join(f"{each.name} {each.value}" for each in command.arguments)
    return f"{command.name} ({arguments})" if arguments else command.name


def _new_id(now_ns: int) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_ns // 1_000_000_000))
    return f"{stamp}-{os.urandom(3).hex()}"


def _who() -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's uid without a name
        user = f"uid {os.geteuid()}"
    return f"{user}@{socket.gethostname()}, pid {os.getpid()}"[:MAX_AUTHOR_CHARS]
