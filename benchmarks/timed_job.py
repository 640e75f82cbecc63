"""Runs a training script and prints how long its steps take, the device's work included.

    python benchmarks/timed_job.py WARMUP STEPS script.py [args]

The clock starts when WARMUP steps are done and stops STEPS later, each time with the device drained. It
is the same with and without an agent around it.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    """Time the script given on the command line."""
    warmup, steps = int(sys.argv[1]), int(sys.argv[2])
    del sys.argv[:3]
    seen, began_s = 0, 0.0

    def after_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal seen, began_s
        seen += 1
        if seen not in (warmup, warmup + steps):
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now_s = time.perf_counter()
        if seen == warmup:
            began_s = now_s
        elif os.environ.get("RANK", "0") == "0":
            print(f"step_ms {(now_s - began_s) / steps * 1e3:.6f}", flush=True)

    register_optimizer_step_post_hook(after_step)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
