"""Options of the bundled workloads: declared without torch, parsed by the scripts and by who starts them.

The same parser says what is wrong with a command line before a job is started and in each of its ranks.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

Value = bool | int | float | str | None
Defaults = Literal["cuda", "shared", "cpu"]
"""For what a default is: a GPU a rank, a GPU that several ranks share, or a CPU."""


class OptionsError(ValueError):
    """A command line that the workload would refuse; the message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line: each rank of a job prints it."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class Checker(Parser):
    """Raises OptionsError where the script would end."""

    def error(self, message: str) -> NoReturn:
        """What would end it."""
        raise OptionsError(message)


def positive_int(text: str) -> int:
    """An option's value: 1, 2, 3, ..."""
    return _whole_number(text, 1, "a positive whole number")


def count(text: str) -> int:
    """An option's value: 0, 1, 2, ..."""
    return _whole_number(text, 0, "a whole number, 0 or more")


def _whole_number(text: str, least: int, what: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    """An option's value: a finite number above 0."""
    value = non_negative_float(text, "a positive number")
    if not value:
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return value


def non_negative_float(text: str, what: str = "a number, 0 or more") -> float:
    """An option's value: a finite number, 0 or above."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return value


def multiple_of(unit: int) -> Callable[[str], int]:
    """What takes a positive multiple of `unit` as an option's value."""

    def multiple(text: str) -> int:
        value = positive_int(text)
        if value % unit:
            raise argparse.ArgumentTypeError(f"must be a multiple of {unit}, not {value}")
        return value

    return multiple


def new_file(text: str) -> Path:
    """An option's value: where a file can be written."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no file can be written at {text!r}")
    return path


def new_folder(text: str) -> Path:
    """An option's value: where a folder is, or can be made."""
    path = Path(text)
    if not path.is_dir() and (path.exists() or not path.absolute().parent.is_dir()):
        raise argparse.ArgumentTypeError(f"no folder can be made at {text!r}")
    return path


def command(text: str) -> str:
    """An option's value: words as for a shell, one at least."""
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
    """Without dashes it is a word by its place, which may be left out."""
    what: str
    """What it does, for a list."""
    kind: Callable[[str], Path | int | float | str] | None = None
    """Makes the value of what was typed, or raises argparse.ArgumentTypeError."""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: Value = None
    """What is taken where it is not given; None: nothing. Of a switch: False, or True for one that
    ``--no-...`` turns off."""
    on_gpu: Value = None
    """In place of `default` on GPUs."""
    on_shared: Value = None
    """In place of `on_gpu` where several ranks share a GPU."""
    on_cpu: Value = None
    """In place of `default` on CPUs."""
    dest: str = ""
    """Its name among the parsed options; empty: as the flag has it."""

    @property
    def name(self) -> str:
        """Its name among the parsed options."""
        return self.dest or self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.kind is None and not self.choices

    @property
    def shown(self) -> str:
        """As a list names it: ``--layers N``."""
        if not self.flag.startswith("-"):
            return self.metavar
        return self.flag if self.is_switch else f"{self.flag} {self.metavar or '|'.join(self.choices)}"

    def default_on(self, where: Defaults) -> Value:
        """What is taken there where the option is not given."""
        own = self.on_cpu if where == "cpu" else self.on_gpu
        if where == "shared" and self.on_shared is not None:
            own = self.on_shared
        return self.default if own is None else own

    @property
    def help(self) -> str:
        """What it does, and its default."""
        if self.on_gpu is not None:
            on_gpu, on_cpu = value_text(self.on_gpu), value_text(self.on_cpu)
            shared = "" if self.on_shared is None else f"{value_text(self.on_shared)} on a shared one, "
            return f"{self.what}; default {on_gpu} on a GPU, {shared}{on_cpu} on a CPU"
        if self.default is None or self.default is False:
            return self.what
        return f"{self.what}; default {value_text(self.default)}"

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Have `parser` understand it. What is not given stays None: defaults depend on the device."""
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
    """An option's value as a list shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def complete(options: Iterable[Option], parsed: argparse.Namespace, where: Defaults) -> None:
    """Give each option that was not given its default there."""
    for option in options:
        if getattr(parsed, option.name) is None:
            setattr(parsed, option.name, option.default_on(where))
