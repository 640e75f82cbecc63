"""Runs bundled workloads one after the other in one job, which imports torch and meets its ranks once.

    torchrun --nproc-per-node=2 -m overlaptop.agent benchmarks/jobs/in_turn.py STEPS RUN [RUN ...]

A RUN is a workload and its options in quotation marks: "ddp --mode after-backward". Each has as many steps.
As the agent counts steps, number n lies in run n // STEPS; the last of a run holds the start of the next.
Runs that mark their steps themselves come last: from the first such mark on, optimizers mark none.
"""

from __future__ import annotations

import gc
import importlib
import shlex
import sys

from overlaptop.agent.knobs.script_knobs import DECLARED
from overlaptop.workloads import catalog, job


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
            DECLARED._declared.clear()  # a run may declare a knob with another default
            importlib.import_module(f"overlaptop.workloads.{name}").run(parsed, place)


if __name__ == "__main__":
    main()
