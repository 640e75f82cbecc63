"""Something wrong on purpose, in any other workload."""

from __future__ import annotations

from overlaptop.workloads.entries.workload import bundled
from overlaptop.workloads.options import Option, command, count, new_folder, positive_float, positive_int

FAULTS = bundled(
    "faults",
    "any of the others with one thing wrong on purpose: a rank that comes late",
    "Run a workload in which one rank comes late on purpose.",
    "the first line of the overview names that rank and what the others wait for it; theirs is the exposed "
    "communication, its "
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
