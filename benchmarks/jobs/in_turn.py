"""Runs bundled workloads one after the other in one job, which imports torch and meets its ranks once.

    torchrun --nproc-per-node=2 -m overlaptop.agent benchmarks/jobs/in_turn.py "--steps 20" RUN [RUN ...]

A RUN is a workload and its options in quotation marks: "ddp --mode after-backward"; the options before
them are for all that have none of their own. Runs that mark their steps themselves come last: from the
first such mark on, optimizers mark none. Behind each rank 0 prints "run over", the number of the step that
then begins, by the agent's count, and why it did not run where its workload refuses that on this machine.
"""

import gc
import importlib
import shlex
import sys

import torch

import overlaptop.agent
from overlaptop.agent.knobs.script_knobs import DECLARED
from overlaptop.workloads import catalog, job
from overlaptop.workloads.options import OptionsError


def main() -> None:
    """Run all."""
    _, for_all, *runs = sys.argv
    planned = []
    for words in runs:
        name, *options = shlex.split(words)
        workload = catalog.find(name)
        assert workload is not None, name
        planned.append((workload, *job.parse(workload, [*shlex.split(for_all), *options])))
    agent = overlaptop.agent._agent
    assert agent is not None
    with job.process_group(planned[0][2]):
        for workload, parsed, place in planned:
            gc.collect()  # of the run before
            if place.device.type == "cuda":
                torch.cuda.empty_cache()
            DECLARED._declared.clear()  # a run may declare a knob with another default
            agent._measuring.settings_changed(agent._step)
            refusal = ""
            try:
                workload.fits(parsed, place.world_size, place.defaults)
                importlib.import_module(f"overlaptop.workloads.{workload.name}").run(parsed, place)
            except OptionsError as fault:
                refusal = str(fault)
            if place.rank == 0:
                print("run over", agent._step, refusal, flush=True)


if __name__ == "__main__":
    main()
