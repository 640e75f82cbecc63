"""Options of the bundled workloads, declared without torch: scripts and their launchers parse them.

The same parser checks a command line before a job starts and in each of its ranks.
"""

import argparse
import math
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

Value = bool | int | float | str | None
Defaults = Literal["cuda", "shared", "cpu"]
"""Devices with different defaults: a GPU for each rank, a GPU shared by several ranks, or a CPU."""


class OptionsError(ValueError):
    """A command line that the workload would refuse; the message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors, as each rank of a job prints them."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


class Checker(Parser):
    """Raises OptionsError where the script's parser would exit."""

    def error(self, message: str) -> NoReturn:
        raise OptionsError(message)


def positive_int(text: str) -> int:
    return _whole_number(text, 1, "a positive whole number")


def count(text: str) -> int:
    return _whole_number(text, 0, "a whole number, 0 or more")


def _whole_number(text: str, least: int, what: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    value = non_negative_float(text, "a positive number")
    if not value:
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return value


def non_negative_float(text: str, what: str = "a number, 0 or more") -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return value


def multiple_of(unit: int) -> Callable[[str], int]:
    def multiple(text: str) -> int:
        value = positive_int(text)
        if value % unit:
            raise argparse.ArgumentTypeError(f"must be a multiple of {unit}, not {value}")
        return value

    return multiple


def new_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no file can be written at {text!r}")
    return path


def new_folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir() and (path.exists() or not path.absolute().parent.is_dir()):
        raise argparse.ArgumentTypeError(f"no folder can be made at {text!r}")
    return path


def command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {fault}") from fault
    if not words:
        raise argparse.ArgumentTypeError("must name what to run")
    return text


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a workload. Without `kind` and `choices` it is a switch."""

    flag: str
    """Without dashes it is an optional positional argument."""
    what: str
    """Its effect, for a list."""
    kind: Callable[[str], Path | int | float | str] | None = None
    """Parses the value, or raises argparse.ArgumentTypeError."""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: Value = None
    """Value if the option is not given; None: no value. For a switch: False, or True for one that
    ``--no-...`` turns off."""
    on_gpu: Value = None
    """Replaces `default` on GPUs."""
    on_shared: Value = None
    """Replaces `on_gpu` if several ranks share a GPU."""
    on_cpu: Value = None
    """Replaces `default` on CPUs."""
    dest: str = ""
    """Name among the parsed options; empty: from the flag."""

    @property
    def name(self) -> str:
        """Name among the parsed options."""
        return self.dest or self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        return self.kind is None and not self.choices

    @property
    def shown(self) -> str:
        """Its form in a list: ``--layers N``."""
        if not self.flag.startswith("-"):
            return self.metavar
        return self.flag if self.is_switch else f"{self.flag} {self.metavar or '|'.join(self.choices)}"

    def default_on(self, where: Defaults) -> Value:
        """Return the value on this device if the option is not given."""
        own = self.on_cpu if where == "cpu" else self.on_gpu
        if where == "shared" and self.on_shared is not None:
            own = self.on_shared
        return self.default if own is None else own

    @property
    def help(self) -> str:
        if self.on_gpu is not None:
            on_gpu, on_cpu = value_text(self.on_gpu), value_text(self.on_cpu)
            shared = "" if self.on_shared is None else f"{value_text(self.on_shared)} on a shared one, "
            return f"{self.what}; default {on_gpu} on a GPU, {shared}{on_cpu} on a CPU"
        if self.default is None or self.default is False:
            return self.what
        return f"{self.what}; default {value_text(self.default)}"

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to `parser`. Without a value it is None, as defaults depend on the device."""
        kind: dict[str, Any] = {"action": "store_true"}
        if self.choices:
            kind = {"choices": self.choices}
        elif self.kind is not None:
            kind = {"type": self.kind, "metavar": self.metavar}
        elif self.default:
            kind = {"action": argparse.BooleanOptionalAction}
        if self.flag.startswith("-"):
            kind["dest"] = self.name
        else:
            kind["nargs"] = "?"
        parser.add_argument(self.flag, default=None, help=self.help, **kind)


def value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def complete(options: Iterable[Option], parsed: argparse.Namespace, where: Defaults) -> None:
    """Set options that were not given to their defaults on this device."""
    for option in options:
        if getattr(parsed, option.name) is None:
            setattr(parsed, option.name, option.default_on(where))
