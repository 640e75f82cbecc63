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
from dataclasses import dataclass
from types import MappingProxyType

from overlaptop.wire.messages import Argument, Command

MAX_BY_CHARS = 200
_ID = re.compile(r"[0-9a-z-]{8,40}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an argument may be; both ends belong to it."""

    least: int
    most: int


CAPTURE = "capture"
"""All ranks run torch.profiler for ``steps`` steps from the same step on, and write a trace each."""

SET_BUCKET_CAP_MB = "set_bucket_cap_mb"
"""All ranks give their DistributedDataParallel model buckets of ``mb`` MiB, in the same step."""

COMMANDS: Mapping[str, Mapping[str, Bounds]] = MappingProxyType(
    {
        CAPTURE: MappingProxyType({"steps": Bounds(1, 100)}),
        SET_BUCKET_CAP_MB: MappingProxyType({"mb": Bounds(1, 10_000)}),
    }
)
"""Name -> its arguments, all of which must be there."""

SETTINGS: Mapping[str, tuple[str, str]] = MappingProxyType({"bucket_cap_mb": (SET_BUCKET_CAP_MB, "mb")})
"""What can be set -> the command that sets it, and the argument that takes the value."""


def fault(command: Command) -> str:
    """What is wrong with a command, in a line; empty: nothing."""
    allowed = COMMANDS.get(command.name)
    if allowed is None:
        return f"there is no such command; there is: {', '.join(COMMANDS)}"
    if not _ID.fullmatch(command.id):
        return "its id is not 8 to 40 of the characters a-z, 0-9 and -"
    if len(command.by) > MAX_BY_CHARS:
        return f"who asks is named in more than {MAX_BY_CHARS} characters"
    names = [argument.name for argument in command.arguments]
    if sorted(names) != sorted(allowed):
        return f"{command.name} takes exactly: {', '.join(allowed)}"
    for argument in command.arguments:
        bounds = allowed[argument.name]
        if not bounds.least <= argument.value <= bounds.most:
            return f"{argument.name} must be from {bounds.least} to {bounds.most}, not {argument.value}"
    return ""


def make(name: str, arguments: Mapping[str, int]) -> Command:
    """A command of this process's user, made now. Raises ValueError with one line if it is not allowed.

    Its id begins with the time in UTC and names the command everywhere: to several nodes' hubs, in the
    job's store and in what the command leaves on disk.
    """
    now_ns = time.time_ns()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_ns // 1_000_000_000))
    command = Command(
        id=f"{stamp}-{secrets.token_hex(3)}",
        name=name,
        arguments=tuple(Argument(key, value) for key, value in arguments.items()),
        by=_who(),
        at_ns=now_ns,
    )
    if why := fault(command):
        raise ValueError(why)
    return command


def make_setting(setting: str, value: int) -> Command:
    """The command that sets one of `SETTINGS`. Raises ValueError with one line if it is not allowed."""
    if setting not in SETTINGS:
        raise ValueError(f"{setting} cannot be set; there is: {', '.join(SETTINGS)}")
    name, argument = SETTINGS[setting]
    bounds = COMMANDS[name][argument]
    if not bounds.least <= value <= bounds.most:
        raise ValueError(f"{setting} must be from {bounds.least} to {bounds.most}, not {value}")
    return make(name, {argument: value})


def argument(command: Command, name: str) -> int:
    """The value of an argument of a command without fault."""
    return next(each.value for each in command.arguments if each.name == name)


def in_words(command: Command) -> str:
    """``capture (steps 5)``."""
    said = ", ".join(f"{each.name} {each.value}" for each in command.arguments)
    return f"{command.name} ({said})" if said else command.name


def _who() -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's uid without a name
        user = f"uid {os.geteuid()}"
    return f"{user}@{socket.gethostname()}, pid {os.getpid()}"[:MAX_BY_CHARS]
