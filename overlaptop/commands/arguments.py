"""Options shared by several commands."""

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from overlaptop.commands.output import CommandError, needs_ascii, refusing
from overlaptop.remote import targets
from overlaptop.wire.protocol import JOB_KEY

_BYTES = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_HOSTS = """\
HOST is whatever ssh takes (me@gpu-a, or a name of ~/.ssh/config), ssh://me@gpu-a:2222,
docker://CONTAINER, kubectl://[NAMESPACE/]POD[/CONTAINER], srun://JOBID[/NODE], local://, or
slurm:JOBID for all nodes of a Slurm job. If a host has a command's name,
write ssh://demo. Nothing has to be installed there but what the job itself uses, and no port is opened.
ssh asks for passwords and host keys before the screen opens.
"""
_HOSTS_BRIEF = """\
For a job on other hosts. `overlaptop watch --help` says what HOST may be.
"""


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a command line, at least one, and how to reach them. Empty and 0: the default."""

    targets: tuple[targets.Target, ...]
    python: str = ""
    remote_dir: str = ""
    bytes_per_s: int = 0


def add_flag(parser: argparse._ActionsContainer, name: str, about: str) -> None:
    parser.add_argument(name, action="store_true", help=about)


def add_value(parser: argparse._ActionsContainer, name: str, metavar: str, about: str, **more: Any) -> None:
    """Add a positional argument, or an option with a value. `more`: as in argparse."""
    parser.add_argument(name, metavar=metavar, help=about, **more)


def add_job(parser: argparse._ActionsContainer, about: str) -> None:
    add_value(parser, "--job", "KEY", about, type=job_key)


def add_hosts(parser: argparse.ArgumentParser, *, as_words: bool = False) -> None:
    """Add the options that name other hosts; `as_words`: as bare words, too. See `hosts_of`."""
    add = partial(add_value, parser.add_argument_group("other hosts", _HOSTS if as_words else _HOSTS_BRIEF))
    if as_words:
        add_value(parser, "host", "HOST", "the job's host (default: this machine)", nargs="*")
    else:
        parser.set_defaults(host=[])
    repeated: dict[str, Any] = {"action": "append", "default": []}
    add("--host", "HOST", "the job's host; repeat it for several", dest="more_hosts", **repeated)
    add("--hosts", "FILE", "a file of hosts, one a line; # begins a comment", type=Path)
    via = "a command that reaches the host: 'sudo -u trainer', 'ssh -J login gpu-a'"
    add("--via", "COMMAND", via, **repeated)
    add("--python", "PATH", "the interpreter there (default: its newest job's)", default="")
    add("--remote-dir", "DIR", "the folder of the jobs' sockets there", default="")
    rate = "most bytes a second from each host: 20k, 1M (default 512 KiB, and less on a slow connection)"
    add("--rate", "BYTES", rate, type=_bytes_per_s, default=0)


def hosts_of(options: argparse.Namespace) -> Hosts | None:
    """Return the hosts that the command line names; None: none.

    Raises CommandError with status 2 for an invalid host, and for options that need a host.
    """
    words = [*options.host, *options.more_hosts]
    if not (words or options.hosts or options.via):
        for option in ("python", "remote-dir", "rate"):
            if vars(options)[option.replace("-", "_")]:
                raise CommandError(f"--{option} goes with a host", 2)
        return None
    with refusing(ValueError), refusing(OSError, where=f"--hosts {options.hosts}: "):
        found = targets.named(words, options.hosts, options.via)
    if not found:
        raise CommandError(f"--hosts {options.hosts}: it contains no host", 2)
    return Hosts(found, options.python, options.remote_dir, options.rate)


def add_ascii(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--ascii", "--no-unicode", action="store_true", default=needs_ascii(),
        help="use ASCII characters only; the default where stdout's encoding is not UTF-8",
    )  # fmt: skip


def add_screen(parser: argparse.ArgumentParser) -> None:
    screen = parser.add_argument_group("the screen")
    add_ascii(screen)
    add_value(screen, "--theme", "NAME", "the dashboard's colours; t changes them")
    refresh = "redraws a second, 0.1 to 10 (default 2); lower it on a slow connection"
    add_value(screen, "--refresh", "HZ", refresh, type=number_from(0.1, 10), default=2.0)


def positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10**9):
        raise argparse.ArgumentTypeError(f"must be a positive whole number, not {text!r}")
    return int(text)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Return the different numbers of ``3,5,8``."""
    if re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", text) is None:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between them, not {text!r}")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def step_number(text: str) -> int:
    """Return a step's number, also as screens write it: ``1,284``."""
    try:
        return int(text.replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a step's number, not {text!r}") from None


def job_key(text: str) -> str:
    if not re.match(JOB_KEY, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no job's key; --list names them")
    return text


def _bytes_per_s(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([kKmMgG]?)(?:i?[bB])?(?:/s)?", text)
    value = round(float(found[1]) * _BYTES[found[2].lower()]) if found else 0
    if not 1_000 <= value <= 10**12:
        raise argparse.ArgumentTypeError(f"must be 1k bytes a second or more, as 20k or 1M, not {text!r}")
    return value


def number_from(least: float, most: float) -> Callable[[str], float]:
    """Return a type for argparse: a number within these bounds."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:g} to {most:g}, not {text!r}")
        return value

    return number
