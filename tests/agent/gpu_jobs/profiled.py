"""Runs a training script, with torch.profiler over some of its steps, and prints what the profiler saw.

    profiled.py FROM TO script.py [args]

The second half of the profiled steps counts: the profiler starts at other moments on other ranks, and the
CPU loses its lead there. A step goes from the end of its predecessor's last collective to the end of its
own. Rank 0 prints one line of JSON, of medians over steps: the overlap, the parts of the step as shares of
it, its length; and collectives and GPU activities per step.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from overlaptop.timeline import breakdown, spans
from overlaptop.timeline.lanes import Lane, LaneRules


def seen_by(profile, began_ns: int, steps: int) -> dict:
    """The second half of what the profiler saw."""
    rules, lanes, events = LaneRules(), {lane: [] for lane in Lane}, 0
    for event in profile.profiler.kineto_results.events():
        name = event.name()
        if event.device_type() != torch.autograd.DeviceType.CUDA or event.start_ns() < began_ns:
            continue
        if name.startswith(("ProfilerStep", "gpu_user_annotation", "Optimizer.", "nccl:")):
            continue
        lowered = name.lower()
        kind = next((kind for kind in ("memcpy", "memset") if lowered.startswith(kind)), "kernel")
        kind = "peer_memcpy" if "ptop" in lowered and kind == "memcpy" else kind
        lanes[rules.lane(name, kind)].append((event.start_ns(), event.start_ns() + event.duration_ns()))
        events += 1
    ends = sorted(end for _, end in lanes[Lane.COMM])
    per_step = len(ends) // steps
    bounds = [ends[at * per_step - 1] for at in range(steps // 2, steps + 1)]
    of = {lane: spans.from_pairs(lanes[lane]) for lane in Lane}
    parts = [
        breakdown.break_down(begin, end, of[Lane.COMPUTE], of[Lane.COMM], of[Lane.COPY])
        for begin, end in pairwise(bounds)
    ]
    names = ("hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns", "idle_ns")
    return {
        "overlap": median(part.overlap for part in parts),
        "shares": {name: median(getattr(part, name) / part.step_ns for part in parts) for name in names},
        "step_ms": median(part.step_ns for part in parts) / 1e6,
        "collectives": len(ends) / steps,
        "activities": events / steps,
    }


def main() -> None:
    first, last = int(sys.argv[1]), int(sys.argv[2])
    del sys.argv[:3]
    state = {"steps": 0}

    def after(*_) -> None:
        state["steps"] += 1
        if state["steps"] == first:
            dist.barrier()
            torch.cuda.synchronize()
            state["profile"] = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            state["profile"].__enter__()
            dist.barrier()
            torch.cuda.synchronize()
            state["began_ns"] = time.time_ns()
        elif state["steps"] == last:
            torch.cuda.synchronize()
            state["profile"].__exit__(None, None, None)
            if os.environ["RANK"] == "0":
                print(json.dumps(seen_by(state["profile"], state["began_ns"], last - first)), flush=True)

    register_optimizer_step_post_hook(after)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
