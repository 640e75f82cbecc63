"""Workloads and their options, declared without torch: scripts and their launchers parse them.

The same parser checks a command line before a job starts and in each of its ranks.
"""

import argparse
import ast
import math
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

HEAD_WIDTH = 64  # Width of an attention head in the small GPT; the model's width is a multiple of it

Value: TypeAlias = bool | int | float | str | None
Defaults: TypeAlias = Literal["cuda", "shared", "cpu"]
"""Devices with different defaults: a GPU for each rank, a GPU shared by several ranks, or a CPU."""


class OptionsError(ValueError):
    """A command line that the workload would refuse; the message is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors, as each rank of a job prints them."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Checker(Parser):
    """Raises OptionsError where the script's parser would exit."""

    def error(self, message: str) -> NoReturn:
        raise OptionsError(message)


# Parsers of values


def count(text: str, least: int = 0, what: str = "a whole number, 0 or more") -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return int(text)


def positive_int(text: str) -> int:
    return count(text, 1, "a positive whole number")


def non_negative_float(text: str, least: float = 0.0, what: str = "a number, 0 or more") -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return value


def positive_float(text: str) -> float:
    return non_negative_float(text, math.ulp(0.0), "a positive number")


def model_width(text: str) -> int:
    value = positive_int(text)
    if value % HEAD_WIDTH:
        raise argparse.ArgumentTypeError(f"must be a multiple of {HEAD_WIDTH}, not {value}")
    return value


def new_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no file can be written at {text!r}")
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

    flag: str  # Without dashes it is an optional positional argument
    what: str  # Its effect, for a list
    kind: Callable[[str], Path | int | float | str] | None = None
    """Parses the value, or raises argparse.ArgumentTypeError."""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    default: Value = None
    """Value if the option is not given; None: no value. For a switch: False, or True for one that
    ``--no-...`` turns off."""
    on_gpu: Value = None  # Replaces `default` on GPUs
    on_shared: Value = None  # Replaces `on_gpu` if several ranks share a GPU
    on_cpu: Value = None  # Replaces `default` on CPUs
    dest: str = ""  # Name among the parsed options; empty: from the flag

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
    for option in options:
        if getattr(parsed, option.name) is None:
            setattr(parsed, option.name, option.default_on(where))


# Options that several workloads share


def common(results: str) -> tuple[Option, ...]:
    """Return the options of every bundled job; `results` names the one for a file of each step's result."""
    return (
        Option("--steps", "stop after N steps; 0: go on until stopped", count, "N", default=0),
        Option("--seconds", "stop after about this long", positive_float, "S"),
        Option("--data-ms", "wait in each step, as for a slow data loader", count, "MS", default=0),
        Option(
            "--dtype", "of weights, gradients and activations", choices=("float32", "bfloat16"),
            on_gpu="bfloat16", on_cpu="float32",
        ),
        Option(
            "--device", "auto: a GPU where there is one", choices=("auto", "cuda", "cpu"), default="auto",
        ),
        Option("--seed", "of weights and data", count, "N", default=0),
        Option(results, "write rank 0's, one a line, with all digits", new_file, "FILE", dest="results"),
    )  # fmt: skip


REPLICAS = Option("--replicas", "groups of ranks with all the weights each", positive_int, "N", default=1)


def gpt(*, gpu_layers: int, gpu_width: int) -> tuple[Option, ...]:
    """Return the options of the small GPT and its determinism, and the common ones.

    On a CPU the model has 3.7 million parameters, 15 MB of gradients: a step takes 0.1 to 0.3 s on two
    laptop cores. On a shared GPU it has 0.12 billion, 0.2 GB of gradients, which loopback sockets carry.
    """
    return (
        Option(
            "--layers", "transformer blocks", positive_int, "N", on_gpu=gpu_layers, on_shared=8, on_cpu=4,
        ),
        Option(
            "--width", f"of the model, a multiple of {HEAD_WIDTH}", model_width, "N",
            on_gpu=gpu_width, on_shared=1024, on_cpu=256,
        ),
        Option("--batch", "sequences a rank and step", positive_int, "N", default=4),
        Option("--seq", "tokens a sequence", positive_int, "N", on_gpu=1024, on_cpu=128),
        Option("--vocabulary", "different tokens", positive_int, "N", on_gpu=8192, on_cpu=1024),
        Option("--deterministic", "the same bits in each run; slower", default=False),
        *common("--losses"),
    )  # fmt: skip


# Workloads

Fits: TypeAlias = Callable[[argparse.Namespace, int, Defaults], None]
"""Raises OptionsError if this number of ranks cannot use these options, all with values, on this device."""


def _fits_anywhere(_options: argparse.Namespace, _ranks: int, _where: Defaults) -> None:
    """Refuse nothing."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A script that torchrun can start."""

    name: str
    path: Path  # Absolute
    summary: str  # One line for a list
    options: tuple[Option, ...]
    fits: Fits = _fits_anywhere

    def parser(self) -> Parser:
        """Return the parser for its script's command line. Its help begins with the script's docstring."""
        text = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""
        width = shutil.get_terminal_size().columns - 2
        paragraphs = text.replace("``", "").split("\n\n")
        description = "\n\n".join(textwrap.fill(" ".join(each.split()), width) for each in paragraphs)
        form = argparse.RawDescriptionHelpFormatter
        parser = Parser(prog=self.path.name, description=description, formatter_class=form)
        for option in self.options:
            option.add_to(parser)
        return parser

    def check(self, words: Sequence[str]) -> dict[str, object]:
        """Return the options in `words` by name; OptionsError if the script would refuse them."""
        return {name: value for name, value in vars(self._parsed(words)).items() if value is not None}

    def check_on(self, words: Sequence[str], ranks: int, where: Defaults) -> None:
        """Raise OptionsError if this number of ranks would refuse `words` on this device."""
        parsed = self._parsed(words)
        complete(self.options, parsed, where)
        self.fits(parsed, ranks, where)

    def _parsed(self, words: Sequence[str]) -> argparse.Namespace:
        checker = _Checker(add_help=False)
        for option in self.options:
            option.add_to(checker)
        return checker.parse_args(words)

    def is_called(self, name_or_path: str) -> bool:
        """Whether this is its name (``ddp``), its path, or its file's name if no such file exists here."""
        path = Path(name_or_path)
        if name_or_path == self.name or not path.is_file():
            return name_or_path in (self.name, self.path.name)
        return path.samefile(self.path)


def bundled(name: str, summary: str, *options: Option, fits: Fits = _fits_anywhere) -> Workload:
    """Return the workload whose script is ``workloads/NAME.py``."""
    return Workload(name, Path(__file__).absolute().with_name(f"{name}.py"), summary, options, fits)
