"""A workload, as seen by code that lists or starts it, and the options that several workloads share."""

import argparse
import ast
import importlib.util
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from overlaptop.workloads.options import (
    Checker,
    Defaults,
    Option,
    OptionsError,
    Parser,
    complete,
    count,
    multiple_of,
    new_file,
    positive_float,
    positive_int,
)

HEAD_WIDTH = 64
"""Width of an attention head in the small GPT; the model's width is a multiple of it."""

Fits: TypeAlias = Callable[[argparse.Namespace, int, Defaults], None]
"""Raises OptionsError if this number of ranks cannot use these options, all with values, on this device."""


def _whatever(options: argparse.Namespace, ranks: int, where: Defaults) -> None:
    del options, ranks, where


@dataclass(frozen=True, slots=True)
class Workload:
    """A script that torchrun can start."""

    name: str
    path: Path
    """Absolute."""
    summary: str
    """One line for a list."""
    options: tuple[Option, ...]
    fits: Fits = _whatever

    def parser(self) -> Parser:
        """Return the parser for its script's command line. Its help begins with the script's docstring."""
        text = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""
        width = shutil.get_terminal_size().columns - 2
        paragraphs = text.replace("``", "").split("\n\n")
        description = "\n\n".join(textwrap.fill(" ".join(each.split()), width) for each in paragraphs)
        form = argparse.RawDescriptionHelpFormatter
        return self._told_to(Parser(prog=self.path.name, description=description, formatter_class=form))

    def check(self, words: Sequence[str]) -> dict[str, object]:
        """Return the options in `words` by name; OptionsError if the script would refuse them."""
        parsed = self._told_to(Checker(add_help=False)).parse_args(words)
        return {name: value for name, value in vars(parsed).items() if value is not None}

    def is_called(self, name_or_path: str) -> bool:
        """Whether this is its name (``ddp``), its path, or its file's name if no such file exists here."""
        path = Path(name_or_path)
        if name_or_path == self.name or not path.is_file():
            return name_or_path in (self.name, self.path.name)
        return path.samefile(self.path)

    def check_on(self, words: Sequence[str], ranks: int, where: Defaults) -> None:
        """Raise OptionsError if this number of ranks would refuse `words` on this device."""
        parsed = self._told_to(Checker(add_help=False)).parse_args(words)
        complete(self.options, parsed, where)
        self.fits(parsed, ranks, where)

    def _told_to(self, parser: Parser) -> Parser:
        for option in self.options:
            option.add_to(parser)
        return parser


def bundled(name: str, summary: str, *options: Option, fits: Fits = _whatever) -> Workload:
    """Return the workload whose script is ``workloads/NAME.py``."""
    path = Path(__file__).absolute().parent.with_name(f"{name}.py")
    return Workload(name, path, summary, options, fits)


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
            "--width", f"of the model, a multiple of {HEAD_WIDTH}", multiple_of(HEAD_WIDTH), "N",
            on_gpu=gpu_width, on_shared=1024, on_cpu=256,
        ),
        Option("--batch", "sequences a rank and step", positive_int, "N", default=4),
        Option("--seq", "tokens a sequence", positive_int, "N", on_gpu=1024, on_cpu=128),
        Option("--vocabulary", "different tokens", positive_int, "N", on_gpu=8192, on_cpu=1024),
        Option("--deterministic", "the same bits in each run; slower", default=False),
        *common("--losses"),
    )  # fmt: skip


# Requirements of modes on the ranks and the machine


def require_multiple(option: str, value: int, unit: int, of: str = "") -> None:
    """Raise OptionsError if the value of `option` is no multiple of `unit`, the number of ``of``."""
    if value % unit:
        raise OptionsError(f"{option}: must be a multiple of {unit}{of and f', the {of}'}")


def ranks_a_replica(options: argparse.Namespace, ranks: int) -> int:
    """Return the number of ranks that share the weights. Raises OptionsError if groups do not divide."""
    if ranks % options.replicas:
        raise OptionsError(f"--replicas: {ranks} ranks do not make {options.replicas} groups")
    return int(ranks // options.replicas)


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def why_no_gpu_each(ranks: int, where: Defaults) -> str:
    """Why ranks cannot access each other's GPU; empty if they can."""
    return "" if where == "cuda" else f"needs {ranks} GPUs, one for each rank"


def why_no_transformer_engine(ranks: int, where: Defaults, *, overlaps: bool) -> str:
    """Why TransformerEngine, or its overlap, cannot be used here; empty if it can."""
    if not is_installed("transformer_engine"):
        return "TransformerEngine is not installed here (pip install transformer-engine[pytorch])"
    if where == "cpu":
        return f"needs {ranks} GPUs"
    return why_no_gpu_each(ranks, where) if overlaps else ""
