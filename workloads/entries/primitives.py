"""Collectives beside other work, with no model around them."""

from __future__ import annotations

from overlaptop.workloads.entries.workload import bundled, common
from overlaptop.workloads.options import Option, positive_float, positive_int

ALLREDUCE_MATMUL = bundled(
    "allreduce_matmul",
    "an all-reduce beside matrix products and host-to-device copies",
    "All-reduce beside matrix products and host-to-device copies.",
    "with --mode async the all-reduce lies below the products and the copy beside them; with sequential "
    "all three lie one behind the other, and the overlap is 0.",
    Option(
        "--mode", "all three at once, or one after the other", choices=("async", "sequential"),
        default="async",
    ),
    # On two H200s a few ms each: 1 GiB reduced, 4 products of 1.1 Tflop, 128 MiB copied. On two laptop
    # cores a step of about 0.1 s.
    Option(
        "--size-mb", "reduced each step, in MiB", positive_float, "MB",
        on_gpu=1024.0, on_shared=64.0, on_cpu=32.0,
    ),
    Option(
        "--matrix", "rows and columns of each matrix", positive_int, "N",
        on_gpu=8192, on_shared=4096, on_cpu=1024,
    ),
    Option("--products", "matrix products a step", positive_int, "N", default=4),
    *common("--figures"),
)  # fmt: skip
