"""Runs a training script, with torch.profiler over some of its steps, and prints what the profiler saw.

    profiled.py FROM LENGTH WINDOWS script.py [args]

The profiler runs over LENGTH steps from step FROM on, then not for as many, then again, WINDOWS times: the
job itself drifts, and so both kinds of windows are spread over it. The second half of the profiled steps
counts: the profiler starts at other moments on other ranks, and the CPU loses its lead there. A step goes
from the end of its predecessor's last collective to the end of its own. Rank 0 prints one line of JSON, of
medians over steps: the overlap, the parts of the step as shares of it, its length; and collectives and GPU
activities per step.
"""

import json
import os
import runpy
import sys
import time
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist
from torch._C._autograd import DeviceType
from torch.optim.optimizer import register_optimizer_step_post_hook

from overlaptop.timeline import ratios, spans
from overlaptop.timeline.lanes import Kind, Lane, LaneRules
from overlaptop.timeline.overlap import Breakdown, break_down

NAMES = ("hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns", "idle_ns")
Seen = tuple[list[Breakdown], float, float]


def seen_by(profile, began_ns: int, steps: int) -> Seen:
    """Steps of the second half of what the profiler saw; collectives and GPU activities a step in all."""
    lanes: dict[Lane, list[tuple[int, int]]] = {lane: [] for lane in Lane}
    rules, events = LaneRules(), 0
    for event in profile.profiler.kineto_results.events():
        name = event.name()
        if event.device_type() != DeviceType.CUDA or event.start_ns() < began_ns:
            continue
        if name.startswith(("ProfilerStep", "gpu_user_annotation", "Optimizer.", "nccl:")):
            continue
        lowered = name.lower()
        kind: Kind = "memset" if lowered.startswith("memset") else "kernel"
        if lowered.startswith("memcpy"):
            kind = "peer_memcpy" if "ptop" in lowered else "memcpy"
        lanes[rules.lane(name, kind)].append((event.start_ns(), event.start_ns() + event.duration_ns()))
        events += 1
    ends = sorted(end for _, end in lanes[Lane.COMM])
    per_step = len(ends) // steps
    bounds = [ends[at * per_step - 1] for at in range(steps // 2, steps + 1)]
    of = {lane: spans.from_pairs(lanes[lane]) for lane in Lane}
    parts = [
        break_down(begin, end, of[Lane.COMPUTE], of[Lane.COMM], of[Lane.COPY])
        for begin, end in pairwise(bounds)
    ]
    return parts, len(ends) / steps, events / steps


def told(windows: list[Seen]) -> dict:
    """All windows together."""
    parts = [part for each, _, _ in windows for part in each]
    return {
        "overlap": median(ratios.overlap(part.hidden_ns, part.comm_ns) or 0.0 for part in parts),
        "shares": {name: median(getattr(part, name) / part.step_ns for part in parts) for name in NAMES},
        "step_ms": median(part.step_ns for part in parts) / 1e6,
        "collectives": median(collectives for _, collectives, _ in windows),
        "activities": median(activities for _, _, activities in windows),
    }


def main() -> None:
    first, length, windows = (int(word) for word in sys.argv[1:4])
    del sys.argv[:4]
    steps = began_ns = 0
    profile = torch.profiler.profile()
    seen: list[Seen] = []

    def after(*_) -> None:
        nonlocal steps, began_ns, profile
        steps += 1
        window, within = divmod(steps - first, 2 * length)
        if not 0 <= window < windows:
            return
        if within == 0:
            dist.barrier()
            torch.cuda.synchronize()
            profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            profile.__enter__()
            dist.barrier()
            torch.cuda.synchronize()
            began_ns = time.time_ns()
        elif within == length:
            torch.cuda.synchronize()
            profile.__exit__(None, None, None)
            if os.environ["RANK"] == "0":
                seen.append(seen_by(profile, began_ns, length))
                if window == windows - 1:
                    print(json.dumps(told(seen)), flush=True)

    register_optimizer_step_post_hook(after)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
