"""What the bundled jobs share: options, devices, the process group, when to stop and what to print."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

# DDP imports this module, and default arguments in it then hold the default process group for good:
# gloo's threads outlive destroy_process_group(), and one that still needs the GIL while the interpreter
# shuts down aborts the process. Imported before there is a group, it holds none.
import torch.distributed.nn

MIB = 1 << 20

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

REPORT_EVERY_S = 2.0


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line: each rank of a job prints it."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def positive_int(text: str) -> int:
    """An option's value: 1, 2, 3, ..."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, not {text!r}")
    return int(text)


def count(text: str) -> int:
    """An option's value: 0, 1, 2, ..."""
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, not {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    """An option's value: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return value


def new_file(text: str) -> Path:
    """An option's value: where a file can be written."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"no file can be written at {text!r}")
    return path


def add_common_options(parser: argparse.ArgumentParser, results: str) -> None:
    """The options that every bundled job has; `results` is the one for a file of each step's result."""
    parser.add_argument("--steps", type=count, default=0, metavar="N", help="0: until stopped (default)")
    parser.add_argument("--seconds", type=positive_float, metavar="S", help="stop after about this long")
    parser.add_argument("--dtype", choices=DTYPES, help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: auto")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="default: %(default)s")
    parser.add_argument(
        results,
        dest="results",
        type=new_file,
        metavar="FILE",
        help="write rank 0's, one a line, with all digits",
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the job this process is."""

    rank: int
    world_size: int
    device: torch.device


def find_place(parser: argparse.ArgumentParser, device: str) -> Place:
    """The place by torchrun's environment, or alone without one; exits where there is no GPU for it.

    Args:
        parser: says what is wrong.
        device: ``auto`` (a GPU where there are any), ``cuda`` or ``cpu``.
    """
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return Place(rank, world_size, torch.device("cpu"))

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        parser.error(
            f"rank {rank} needs GPU {local_rank} and there are {gpus}: start fewer processes, "
            "or pass --device cpu"
        )
    return Place(rank, world_size, torch.device("cuda", local_rank))


def defaults(sizes: Mapping[str, Any], option: str) -> str:
    """What an option's help says of its defaults, which depend on the device."""
    name = option.removeprefix("--").replace("-", "_")
    return f"; default {getattr(sizes['cuda'], name)} on a GPU, {getattr(sizes['cpu'], name)} on a CPU"


def parse(
    parser: argparse.ArgumentParser, sizes: Mapping[str, Any], argv: Sequence[str] | None
) -> tuple[argparse.Namespace, Place]:
    """The options and this process's place in the job.

    Args:
        parser: with the common options.
        sizes: by type of device, a dataclass with what to take for options that were not given.
        argv: the command line; None for the process's own.
    """
    options = parser.parse_args(argv)
    place = find_place(parser, options.device)
    for name, value in asdict(sizes[place.device.type]).items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)
    return options, place


@contextmanager
def process_group(place: Place) -> Iterator[None]:
    """The default process group: NCCL on GPUs, gloo on CPUs."""
    on_gpu = place.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(place.device)
    backend, device_id = ("nccl", place.device) if on_gpu else ("gloo", None)
    if "RANK" in os.environ:
        dist.init_process_group(backend, device_id=device_id)
    else:
        alone = dist.HashStore()  # type: ignore[attr-defined]  # public, but torch forgot to say so
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, device_id=device_id)
    yield
    # Not in a `finally`: after an error the other ranks may be in the middle of a collective, and
    # taking the group down would wait for them instead of ending with the traceback.
    if on_gpu:
        torch.cuda.synchronize()
    dist.destroy_process_group()


def step_numbers(steps: int, seconds: float | None, place: Place) -> Iterator[int]:
    """0, 1, 2, ...: `steps` of them (0: endless) or as many as fit in `seconds`, whatever is less.

    All ranks get the same number of steps. Their clocks are not asked in each step, as agreeing costs a
    collective: rank 0 plans half of the steps that seem to be left, then looks again.
    """
    began_s = time.monotonic()
    look_again_at = 1
    for step in range(steps) if steps else itertools.count():
        if seconds is not None and step == look_again_at:
            elapsed_s = time.monotonic() - began_s
            seem_left = int((seconds - elapsed_s) / elapsed_s * step)
            plan = torch.tensor(0 if elapsed_s >= seconds else max(1, seem_left // 2), device=place.device)
            dist.broadcast(plan, src=0)
            planned = int(plan.item())
            if planned == 0:
                return
            look_again_at = step + planned
        yield step


class Report:
    """Rank 0's line every few seconds, and on request each step's figure in a file.

    Figures stay on the device until a line is due, so that printing does not synchronise each step.

    Args:
        figure: what the job computes, for the line: ``loss``.
        path: file for each step's figure, one a line, with all digits; none if None.
    """

    def __init__(self, place: Place, figure: str, path: Path | None) -> None:
        self._prints = place.rank == 0
        self._figure = figure
        self._file = path.open("w", encoding="utf-8") if path and self._prints else None
        self._waiting: list[torch.Tensor] = []
        self._steps = 0
        self._since_s = time.monotonic()

    def add(self, figure: torch.Tensor) -> None:
        """Take the figure of one step, a tensor of shape ()."""
        if not self._prints:
            return
        self._waiting.append(figure.detach())
        if time.monotonic() - self._since_s >= REPORT_EVERY_S:
            self._say()

    def close(self) -> None:
        """Report what was not reported yet."""
        if self._waiting:
            self._say()
        if self._file:
            self._file.close()

    def _say(self) -> None:
        figures = torch.stack(self._waiting).double().tolist()
        now_s = time.monotonic()
        step_ms = (now_s - self._since_s) / len(figures) * 1e3
        self._steps += len(figures)
        print(f"step {self._steps:6}  {self._figure} {figures[-1]!r}  {step_ms:.1f} ms a step", flush=True)
        if self._file:
            self._file.writelines(f"{figure!r}\n" for figure in figures)
            self._file.flush()
        self._waiting.clear()
        self._since_s = now_s
