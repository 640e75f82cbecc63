"""Runs bundled workloads one after the other in one job, which imports torch and meets its ranks once.

    torchrun --nproc-per-node=2 -m overlaptop.agent benchmarks/jobs/in_turn.py STEPS RUN [RUN ...]

A RUN is a workload and its options in quotation marks: "ddp --mode after-backward". Each has as many steps.
As the agent counts steps, number n lies in run n // STEPS; the last of a run holds the start of the next.
Runs that mark their steps themselves come last: from the first such mark on, optimizers mark none. Rank 0
prints "run over" behind each, and why it did not run where its workload refuses that on this machine: such
a run makes no step.
"""

from __future__ import annotations

import gc
import importlib
import shlex
import sys

import torch

from overlaptop.agent.knobs.script_knobs import DECLARED
from overlaptop.workloads import catalog, job
from overlaptop.workloads.options import OptionsError


def main() -> None:
    """Run all."""
    _, steps, *runs = sys.argv
    planned = []
    for words in runs:
        name, *options = shlex.split(words)
        workload = catalog.find(name)
        assert workload is not None, name
        planned.append((name, *job.parse(workload, [*options, "--steps", steps])))
    with job.process_group(planned[0][2]):
        for name, parsed, place in planned:
            gc.collect()  # of the run before
            if place.device.type == "cuda":
                torch.cuda.empty_cache()
            DECLARED._declared.clear()  # a run may declare a knob with another default
            refusal = ""
            try:
                importlib.import_module(f"overlaptop.workloads.{name}").run(parsed, place)
            except OptionsError as fault:
                refusal = str(fault)
            if place.rank == 0:
                print("run over", refusal, flush=True)


if __name__ == "__main__":
    main()
