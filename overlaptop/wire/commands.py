"""The commands that a job accepts: a closed list, with integers within bounds as arguments.

The codec in the dashboard, the hub and the agent refuses anything else, both when sending and when
receiving.
"""

import os
import pwd
import socket
import time
from collections.abc import Mapping
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
SET = "set"  # All ranks set one of the job's knobs to this ``value``, in the same step
RESTORE = "restore"  # All ranks restore one of the job's knobs to the script's value, in the same step
TRIAL = "trial"
"""All ranks change something for ``steps`` steps from the same step on, and then undo it by themselves.
They try a ``value`` of a knob. Without a knob, one ``rank`` delays each step by ``delay_ns`` at a
``place``."""

HOST, GPU = 0, 1
"""Places of a delay. HOST: the training thread sleeps when the step begins.
GPU: a kernel spins on its current stream."""
PLACES: Mapping[int, str] = {HOST: "host", GPU: "gpu"}
MAX_TRIAL_STEPS = 1_000
MAX_DELAY_NS = 10_000_000_000
MAX_DELAYS_NS = 60_000_000_000
"""All delays of a trial together. The limit is needed because a trial cannot be ended early."""

_SETTING = range(LEAST_VALUE, MOST_VALUE + 1)
_TRIAL_STEPS = range(1, MAX_TRIAL_STEPS + 1)
COMMANDS: Mapping[str, Mapping[str, range]] = {
    CAPTURE: {"steps": range(1, 101)},
    SET: {"value": _SETTING},
    RESTORE: {},
    TRIAL: {"value": _SETTING, "steps": _TRIAL_STEPS},
}
"""Arguments of each command, all required, and their bounds."""
DELAY_ARGUMENTS: Mapping[str, range] = {
    "rank": range(MAX_RANKS),
    "delay_ns": range(1, MAX_DELAY_NS + 1),
    "place": range(len(PLACES)),
    "steps": _TRIAL_STEPS,
}
"""Arguments of a trial without a knob, and their bounds."""

CHANGES = (SET, RESTORE)
"""Commands that change a knob permanently. Each rank with the knob checks its bounds."""
ABOUT_KNOBS = (*CHANGES, TRIAL)  # Commands that can name a knob. Those in CHANGES must.


class Argument(Part, frozen=True):
    """COMMANDS has its bounds."""

    name: Text
    value: Int64


class Command(Message, frozen=True, tag=10):
    """Dashboard -> hub -> every rank of the node and every dashboard:
    all ranks act from one step on, or none does.
    """

    id: Id  # Made by the dashboard. The same for all ranks of a job on all hosts, and never reused.
    name: Text  # One of COMMANDS
    arguments: Annotated[tuple[Argument, ...], Meta(max_length=MAX_ARGUMENTS)]
    by: Author
    at_ns: UnixNs  # Unix time when the hub received it. Until then, the time when it was made.
    knob: Text = ""  # Name of the Knob. Empty for a trial of a delay, and for commands without a knob.

    def inconsistency(self) -> str:
        """Return why COMMANDS does not allow it."""
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
"""States of a command on a rank, in this order. A capture is ``recording``, ``writing`` and ``written``; a
setting is ``changing`` and ``changed``; a trial is ``trying`` and ``tried``. ``unknown``: the rank cannot
learn whether all have agreed. If it learns that later, it reports the result."""

STAGES = (SENT, *REPORT_STATES)  # Stages of one rank. ``sent``: it has reported nothing yet.
Stage = Annotated[str, one_of(STAGES)]
PROGRESS = (SENT, *UNDER_WAY, *ENDED_WELL)  # The stages of a successful command, in order
OBEYING, OBEYED = "obeying", "obeyed"
OUTCOME_STATES = (SENT, OBEYING, OBEYED, FAILED, UNKNOWN)
"""``sent``: no report yet. ``obeyed``: by all ranks. ``failed``: at least one rank has failed. ``unknown``:
a lost rank may have made the change, and a later report may decide it."""
ENDED, SILENT, UNREACHABLE = "ended", "silent", "unreachable"
LOST = ("", ENDED, SILENT, UNREACHABLE)
"""Why a rank's final report is no longer expected. Empty if it is, or has arrived."""


class CommandReport(Message, frozen=True, tag=11):
    """Rank -> hub: the progress of a command on this rank, or why it refuses the command."""

    rank: Rank
    command: Text
    name: Text
    at_ns: UnixNs
    state: Annotated[str, one_of(REPORT_STATES)]
    step: Count | None  # Step from which all ranks act, once agreed. A trial of n steps ends n steps later.
    text: Text  # The written file, or the thing changed. After a failure or an unknown end: the reason.
    old: Text = ""
    """``changed``: the old value, as in Knob.value_text.
    ``tried``: the value before and after the trial."""
    new: Text = ""  # ``changed``: the new value. ``tried``: the value tried.


class RankOutcome(Part, frozen=True):
    """One rank's part of a CommandOutcome."""

    rank: Rank
    reported: Stage  # State of the rank's newest CommandReport. ``sent`` without any.
    state: Stage  # As `reported`, but ``failed`` or ``unknown`` for a lost rank
    text: Text  # As in CommandReport. For a lost rank, why it was lost.
    lost: Annotated[str, one_of(LOST)] = ""


class CommandOutcome(Message, frozen=True, tag=20):
    """Hub -> every dashboard, on each change: the outcome of a command on the hub's ranks.

    Made only by hub/executions.py.
    """

    command: Text
    state: Annotated[str, one_of(OUTCOME_STATES)]
    reason: Text  # Why it failed or is unknown, with the number of the rank. Empty otherwise.
    step: Count | None  # Step from which all ranks act
    done: bool  # No more reports are expected
    ranks: Annotated[tuple[RankOutcome, ...], Meta(max_length=MAX_RANKS)]
    """By rank: every rank that should report, or did."""
    old: Text = ""  # As in CommandReport, once a rank has reported it
    new: Text = ""

    @property
    def stage(self) -> str:
        """Stage of the slowest rank. If the command failed or may have, `state`."""
        if self.state not in (OBEYING, OBEYED):
            return self.state
        # A hub of another version may name no rank, or use stages in another order.
        reached = [PROGRESS.index(each.state) for each in self.ranks if each.state in PROGRESS]
        return PROGRESS[min(reached, default=0)]


def make(name: str, arguments: Mapping[str, int], *, knob: str = "") -> Command:
    """Return a new command from this process's user. Raises ValueError with one line if it is not allowed.

    Its id begins with the UTC time, and names it in all hubs, in the job's store and in the written files.
    """
    now_ns = time.time_ns()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_ns // 1_000_000_000))
    made = tuple(Argument(key, value) for key, value in arguments.items())
    command = Command(f"{stamp}-{os.urandom(3).hex()}", name, made, _who(), now_ns, knob)
    if why := command.inconsistency():
        raise ValueError(why)
    return command


def make_setting(knob: Knob, value: int) -> Command:
    if why := knob.fault(value):
        raise ValueError(why)
    return make(SET, {"value": value}, knob=knob.name)


def make_restoring(knob: Knob) -> Command:
    return make(RESTORE, {}, knob=knob.name)


def make_trial(knob: Knob, value: int, steps: int) -> Command:
    """Return the command that tries a knob's value for this many steps. Raises as `make_setting`."""
    if why := knob.fault(value):
        raise ValueError(why)
    return make(TRIAL, {"value": value, "steps": steps}, knob=knob.name)


def make_delay(rank: int, delay_ns: int, place: int, steps: int) -> Command:
    """Return the command that delays one rank in each of `steps` steps. ``place``: HOST or GPU. Raises
    ValueError with one line.
    """
    return make(TRIAL, {"rank": rank, "delay_ns": delay_ns, "place": place, "steps": steps})


def names_a_rank(text: str) -> bool:
    """Whether a report's text names a rank (``rank 3 does not answer``), and so is equal on all ranks."""
    return text.startswith("rank ")


def argument(command: Command, name: str) -> int:
    return next(each.value for each in command.arguments if each.name == name)


def is_delay(command: Command) -> bool:
    return command.name == TRIAL and not command.knob


def delays_ns(command: Command) -> int:
    return argument(command, "delay_ns") * argument(command, "steps")


def describe(command: Command) -> str:
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


def _who() -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's uid without a name
        user = f"uid {os.geteuid()}"
    return f"{user}@{socket.gethostname()}, pid {os.getpid()}"[:MAX_AUTHOR_CHARS]
