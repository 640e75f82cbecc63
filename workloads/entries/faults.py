"""The workload that runs any other with a fault on purpose."""

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path

from overlaptop.workloads.entries.data_parallel import DDP, FSDP, ZERO
from overlaptop.workloads.entries.model_parallel import EXPERT_PARALLEL, PIPELINE, TENSOR_PARALLEL
from overlaptop.workloads.entries.overlapped_products import GEMM_OVERLAP, TE_LAYERNORM_MLP
from overlaptop.workloads.entries.primitives import ALLREDUCE_MATMUL, DOUBLE_BUFFER, SMALL_MESSAGES
from overlaptop.workloads.entries.workload import Workload, bundled
from overlaptop.workloads.options import (
    Defaults,
    Option,
    OptionsError,
    command,
    count,
    new_folder,
    positive_float,
    positive_int,
)

CAN_BE_LATE: tuple[Workload, ...] = (
    DDP,
    FSDP,
    ZERO,
    TENSOR_PARALLEL,
    PIPELINE,
    EXPERT_PARALLEL,
    GEMM_OVERLAP,
    TE_LAYERNORM_MLP,
    ALLREDUCE_MATMUL,
    DOUBLE_BUFFER,
    SMALL_MESSAGES,
)
"""All other workloads."""


@dataclass(frozen=True, slots=True)
class Run:
    """A workload or script to run with a fault."""

    path: str
    words: list[str]
    """Its options."""
    device: str
    """``auto``, ``cuda`` or ``cpu``."""
    workload: Workload | None
    """None if it is not bundled."""


def what_runs(options: argparse.Namespace) -> Run:
    """Return the run that the options of faults ask for. Raises OptionsError."""
    script, *words = shlex.split(options.workload)
    if FAULTS.is_called(script):
        raise OptionsError("--workload: faults runs any workload but itself")
    workload = next((each for each in CAN_BE_LATE if each.is_called(script)), None)
    if workload is None:
        if not Path(script).is_file():
            raise OptionsError(f"--workload: there is no workload and no script called {script!r}")
        return Run(script, words, options.device, None)
    steps = ("--steps", str(options.steps)) if options.steps else ()
    words = ["--device", options.device, *words, *steps]
    try:
        return Run(str(workload.path), words, str(workload.check(words)["device"]), workload)
    except OptionsError as fault:
        raise OptionsError(f"--workload: {fault}") from fault


def _fits(options: argparse.Namespace, ranks: int, where: Defaults) -> None:
    run = what_runs(options)
    if run.workload is not None:
        try:
            run.workload.check_on(run.words, ranks, "cpu" if run.device == "cpu" else where)
        except OptionsError as fault:
            raise OptionsError(f"--workload: {fault}") from fault
    if options.by != "batches" and options.late_rank >= ranks:
        raise OptionsError(f"--late-rank: must be below {ranks}, the number of ranks")


FAULTS = bundled(
    "faults",
    "any of the others with one thing wrong on purpose: a rank that comes late",
    Option(
        "--workload", "the workload or script, and its options, in quotation marks", command, "WORDS",
        default="ddp",
    ),
    Option("--late-rank", "which", count, "N", default=1),
    Option(
        "--by", "why: it sleeps, computes more, collects garbage, waits for data, shares one CPU with "
        "another process; batches: all ranks compute more, another share in each step",
        choices=("sleep", "compute", "gc", "loader", "cpus", "batches"), default="sleep",
    ),
    Option("--share", "what it loses, as a share of an untouched step", positive_float, "S", default=0.2),
    Option("--untouched", "steps before the fault begins", positive_int, "N", default=30),
    Option("--record", "a folder for what each step has lost: rank-1.jsonl", new_folder, "FOLDER"),
    Option("--steps", "stop after N steps; 0: as the workload says", count, "N", default=0),
    Option(
        "--device", "of a bundled workload; auto: a GPU where there is one",
        choices=("auto", "cuda", "cpu"), default="auto",
    ),
    fits=_fits,
)  # fmt: skip
