"""The bundled workloads and their options, for those who list or start them. Imports none of them, and no
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overlaptop.workloads.options import (
    Checker,
    Option,
    Parser,
    command,
    count,
    multiple_of,
    new_file,
    new_folder,
    positive_float,
    positive_int,
)

HEAD_WIDTH = 64
"""Of an attention head of the small GPT: its width is a multiple."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A script that torchrun can start."""

    name: str
    path: Path
    """Absolute."""
    summary: str
    """One line for a list."""
    description: str
    """For its ``--help``."""
    options: tuple[Option, ...]

    def parser(self) -> Parser:
        """What its script reads its command line with."""
        return self._told_to(Parser(prog=self.path.name, description=self.description))

    def check(self, words: Sequence[str]) -> dict[str, object]:
        """The options that these words give, by name; OptionsError where the script would refuse them."""
        parsed = self._told_to(Checker(add_help=False)).parse_args(words)
        return {name: value for name, value in vars(parsed).items() if value is not None}

    def _told_to(self, parser: Parser) -> Parser:
        for option in self.options:
            option.add_to(parser)
        return parser


def _bundled(name: str, summary: str, description: str, *own: Option) -> Workload:
    path = Path(__file__).absolute().with_name(f"{name}.py")
    return Workload(name, path, summary, description, own)


def _common(results: str) -> tuple[Option, ...]:
    """The options that every bundled job has; `results` is the one for a file of each step's result."""
    return (
        Option("--steps", "stop after so many; 0: go on until stopped", count, "N", default=0),
        Option("--seconds", "stop after about this long", positive_float, "S"),
        Option("--data-ms", "wait so long in each step, as for a slow data loader", count, "MS", default=0),
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


def _gpt(*, gpu_layers: int, gpu_width: int) -> tuple[Option, ...]:
    """The options of the small GPT and its determinism, and the common ones.

    On a CPU it has 3.7 million parameters, 15 MB of gradients: a step of 0.1 to 0.3 s on two laptop cores.
    """
    return (
        Option("--layers", "transformer blocks", positive_int, "N", on_gpu=gpu_layers, on_cpu=4),
        Option(
            "--width", f"of the model, a multiple of {HEAD_WIDTH}", multiple_of(HEAD_WIDTH), "N",
            on_gpu=gpu_width, on_cpu=256,
        ),
        Option("--batch", "sequences a rank and step", positive_int, "N", default=4),
        Option("--seq", "tokens a sequence", positive_int, "N", on_gpu=1024, on_cpu=128),
        Option("--vocabulary", "different tokens", positive_int, "N", on_gpu=8192, on_cpu=1024),
        Option("--deterministic", "the same bits in each run; slower", default=False),
        *_common("--losses"),
    )  # fmt: skip


DDP = _bundled(
    "ddp",
    "a transformer under DDP: gradient buckets reduced during backward, or after it",
    "Train a small GPT under DDP.",
    Option("--bucket-cap-mb", "DDP's bucket size in MiB", positive_float, "MB", on_gpu=25.0, on_cpu=2.0),
    Option(
        "--no-overlap",
        "reduce gradients after backward, with nothing beside it; the bucket size is then fixed",
        default=False,
    ),
    # 840 million parameters, 1.7 GB of gradients: about 50 ms a step on two H200s.
    *_gpt(gpu_layers=16, gpu_width=2048),
)
FSDP = _bundled(
    "fsdp",
    "a transformer under FSDP2: weights gathered as each block needs them, or ahead",
    "Train a small GPT under FSDP2.",
    Option(
        "--prefetch-forward", "blocks whose weights are gathered ahead in forward; 0: as FSDP2 does by "
        "itself, none ahead", count, "N", default=0,
    ),
    Option(
        "--prefetch-backward", "blocks whose weights are gathered ahead in backward; 0: as FSDP2 does by "
        "itself, one ahead", count, "N", default=0,
    ),
    Option(
        "--reshard-after-forward", "free a block's weights behind its forward and gather them again in "
        "backward", default=True,
    ),
    # 2.5 billion parameters. A gather brings 0.4 GB for 1.6 Tflop of forward, which is meant to leave the
    # CPU time for FSDP2's hooks.
    *_gpt(gpu_layers=12, gpu_width=4096),
)  # fmt: skip
ALLREDUCE_MATMUL = _bundled(
    "allreduce_matmul",
    "an all-reduce beside matrix products and host-to-device copies",
    "All-reduce beside matrix products and host-to-device copies.",
    Option(
        "--mode", "all three at once, or one after the other", choices=("async", "sequential"),
        default="async",
    ),
    # On two H200s a few ms each: 1 GiB reduced, 4 products of 1.1 Tflop, 128 MiB copied. On two laptop
    # cores a step of about 0.1 s.
    Option("--size-mb", "reduced each step, in MiB", positive_float, "MB", on_gpu=1024.0, on_cpu=32.0),
    Option("--matrix", "rows and columns of each matrix", positive_int, "N", on_gpu=8192, on_cpu=1024),
    Option("--products", "matrix products a step", positive_int, "N", default=4),
    *_common("--figures"),
)  # fmt: skip

FAULTS = _bundled(
    "faults",
    "any of the others with one thing wrong on purpose: a rank that comes late",
    "Run a workload in which one rank comes late on purpose. What to look for: the first line of the "
    "overview names that rank and what the others wait for it; theirs is the exposed communication, its "
    "own is short; their timelines stand side by side. sleep: the rank's lanes are empty in forward; "
    "compute: its compute is longer; gc, loader: it stands still in forward, or before it; cpus: all that "
    "its CPU does takes longer; batches: the late rank changes from step to step, and nobody is to blame.",
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
    Option("--untouched", "steps in which nothing is wrong yet", positive_int, "N", default=30),
    Option("--record", "a folder for what each step has lost: rank-1.jsonl", new_folder, "FOLDER"),
    Option("--steps", "stop after so many; 0: as the workload says", count, "N", default=0),
    Option(
        "--device", "of a bundled workload; auto: a GPU where there is one",
        choices=("auto", "cuda", "cpu"), default="auto",
    ),
)  # fmt: skip

WORKLOADS: tuple[Workload, ...] = (DDP, FSDP, ALLREDUCE_MATMUL, FAULTS)


def find(name_or_path: str) -> Workload | None:
    """The workload of that name (``ddp``, ``ddp.py``) or at that path; None where it is not bundled."""
    path = Path(name_or_path)
    for workload in WORKLOADS:
        named = name_or_path in (workload.name, workload.path.name)
        if named or (path.exists() and path.samefile(workload.path)):
            return workload
    return None
