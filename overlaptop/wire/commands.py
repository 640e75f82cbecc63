"""What a job can be told to do: a closed list, each argument an integer within bounds.

The one owner of what is allowed. Whoever sends a command, passes it on or obeys it asks `fault`, and
nobody relies on another having asked: the codec does so on the way out and on the way in, in the
dashboard, in the hub and in the agent.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from overlaptop.wire.knobs import Knob, Search
from overlaptop.wire.messages import Argument, Command

MAX_BY_CHARS = 200
_ID = re.compile(r"[0-9a-z-]{8,40}")
_KNOB = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_ID_CHARS = 40
_UNDONE = " (silent; undone by the hub)"
_UNDO = "-undo"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an argument may be; both ends belong to it."""

    least: int
    most: int


CAPTURE = "capture"
"""All ranks run torch.profiler for ``steps`` steps from the same step on, and write a trace each."""

SET = "set"
"""All ranks give one of the job's knobs this ``value``, in the same step."""

RESTORE = "restore"
"""All ranks give one of the job's knobs the value back that the script gave it, in the same step."""

VALUES = Bounds(-(1 << 31), 1 << 31)
"""What the value of any knob may be."""

COMMANDS: Mapping[str, Mapping[str, Bounds]] = MappingProxyType(
    {
        CAPTURE: MappingProxyType({"steps": Bounds(1, 100)}),
        SET: MappingProxyType({"value": VALUES}),
        RESTORE: MappingProxyType({}),
    }
)
"""Name -> its arguments, all of which must be there."""

CHANGES = (SET, RESTORE)
"""The commands that are about a knob. Each job has its own: what the values of one may be is its Knob's to
say, and checked by each rank that has it."""


def fault(command: Command) -> str:
    """What is wrong with a command, in a line; empty: nothing."""
    allowed = COMMANDS.get(command.name)
    if allowed is None:
        return f"there is no such command; there is: {', '.join(COMMANDS)}"
    if not _ID.fullmatch(command.id):
        return "its id is not 8 to 40 of the characters a-z, 0-9 and -"
    if len(command.by) > MAX_BY_CHARS:
        return f"who asks is named in more than {MAX_BY_CHARS} characters"
    if command.name in CHANGES and not is_knob_name(command.knob):
        return f"{command.knob[:80]!r} cannot be a knob's name: letters, digits and _, at most 64"
    if command.name not in CHANGES and command.knob:
        return f"{command.name} is not about a knob"
    if command.search and not _ID.fullmatch(command.search):
        return "its search's id is not 8 to 40 of the characters a-z, 0-9 and -"
    names = [argument.name for argument in command.arguments]
    if sorted(names) != sorted(allowed):
        return f"{command.name} takes exactly: {', '.join(allowed) or 'no argument'}"
    for argument in command.arguments:
        bounds = allowed[argument.name]
        if not bounds.least <= argument.value <= bounds.most:
            return f"{argument.name} must be from {bounds.least} to {bounds.most}, not {argument.value}"
    return ""


def knob_fault(knob: Knob) -> str:
    """What is wrong with what a rank says of a knob, in a line; empty: nothing."""
    if not is_knob_name(knob.name):
        return f"{knob.name[:80]!r} cannot be a knob's name: letters, digits and _, at most 64"
    if not VALUES.least <= knob.least <= knob.most <= VALUES.most:
        return f"its values cannot be from {knob.least} to {knob.most}"
    if any(not VALUES.least <= value <= VALUES.most for value in knob.choices):
        return f"one of its choices is not from {VALUES.least} to {VALUES.most}"
    return ""


def search_fault(search: Search) -> str:
    """What is wrong with a search, in a line; empty: nothing."""
    if not _ID.fullmatch(search.id):
        return "its id is not 8 to 40 of the characters a-z, 0-9 and -"
    if len(search.by) > MAX_BY_CHARS:
        return f"who searches is named in more than {MAX_BY_CHARS} characters"
    if not is_knob_name(search.knob):
        return f"{search.knob[:80]!r} cannot be a knob's name: letters, digits and _, at most 64"
    if search.undo_value is not None and not VALUES.least <= search.undo_value <= VALUES.most:
        return f"it cannot go back to {search.undo_value}"
    return ""


def is_knob_name(name: str) -> bool:
    """Whether a knob may be called so."""
    return _KNOB.fullmatch(name) is not None


def make(name: str, arguments: Mapping[str, int], *, knob: str = "", search: str = "") -> Command:
    """A command of this process's user, made now. Raises ValueError with one line if it is not allowed.

    ``knob`` and ``search`` as in Command. Its id begins with the time in UTC and names the command
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
        search=search,
    )
    if why := fault(command):
        raise ValueError(why)
    return command


def make_setting(knob: Knob, value: int, *, search: str = "") -> Command:
    """The command that sets a knob. Raises ValueError with one line if that value is not allowed."""
    if why := knob.fault(value):
        raise ValueError(why)
    return make(SET, {"value": value}, knob=knob.name, search=search)


def make_restoring(knob: Knob, *, search: str = "") -> Command:
    """The command that gives a knob back the value that the script gave it."""
    return make(RESTORE, {}, knob=knob.name, search=search)


def make_search(knob: Knob) -> Search:
    """A search of this process's user for a knob's best value. It goes back to the present one.

    Raises ValueError where that is neither a whole number nor what the script gave.
    """
    as_given = knob.value_text == knob.original_text
    if knob.value is None and not as_given:
        raise ValueError(f"{knob.name} is {knob.value_text or 'not known'}: no command can go back to that")
    # Restored where it can be: what the script gave may be more than one number.
    return Search(_new_id(time.time_ns()), _who(), knob.name, None if as_given else knob.value)


def make_undoing(search: Search) -> Command:
    """What the hub has the ranks do where the one that searched has fallen silent.

    Its id follows from the search's: ranks agree under a command's id, and the job may have a hub on each
    of several nodes, none of which knows of another.
    """
    back_to = search.undo_value
    command = make(
        RESTORE if back_to is None else SET,
        {} if back_to is None else {"value": back_to},
        knob=search.knob,
        search=search.id,
    )
    return replace(
        command,
        id=search.id[: _MAX_ID_CHARS - len(_UNDO)] + _UNDO,
        by=search.by[: MAX_BY_CHARS - len(_UNDONE)] + _UNDONE,
    )


def argument(command: Command, name: str) -> int:
    """The value of an argument of a command without fault."""
    return next(each.value for each in command.arguments if each.name == name)


def in_words(command: Command) -> str:
    """``capture (steps 5)``, ``set bucket_cap_mb 50``, ``restore bucket_cap_mb``."""
    if command.name in CHANGES:
        return " ".join([command.name, command.knob, *(str(each.value) for each in command.arguments)])
    said = ", ".join(f"{each.name} {each.value}" for each in command.arguments)
    return f"{command.name} ({said})" if said else command.name


def _new_id(now_ns: int) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_ns // 1_000_000_000))
    return f"{stamp}-{secrets.token_hex(3)}"


def _who() -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's uid without a name
        user = f"uid {os.geteuid()}"
    return f"{user}@{socket.gethostname()}, pid {os.getpid()}"[:MAX_BY_CHARS]
