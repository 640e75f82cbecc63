"""Collectives beside other work, without a model."""

from overlaptop.workloads.entries.workload import bundled, common
from overlaptop.workloads.options import Option, count, new_folder, positive_float, positive_int

ALLREDUCE_MATMUL = bundled(
    "allreduce_matmul",
    "an all-reduce beside matrix products and host-to-device copies",
    Option(
        "--mode", "how it is done", choices=("async", "sequential", "host-staged"), default="async",
    ),
    Option("--trace", "write a Chrome trace of a few steps: rank-0.json", new_folder, "FOLDER"),
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
DOUBLE_BUFFER = bundled(
    "double_buffer",
    "batches and gradients twice: one is copied or reduced while the other is used",
    Option(
        "--mode", "what overlaps", choices=("double-buffered", "slow-loader", "sequential"),
        default="double-buffered",
    ),
    Option("--loader-ms", "how long a batch takes to load", count, "MS", default=20),
    # 16 layers of 33 MB (bfloat16) and a batch of 134 MB on a GPU.
    Option("--layers", "linear layers", positive_int, "N", on_gpu=16, on_cpu=6),
    Option("--width", "of each layer", positive_int, "N", on_gpu=4096, on_shared=2048, on_cpu=512),
    Option("--batch", "rows a step", positive_int, "N", on_gpu=16384, on_cpu=512),
    *common("--losses"),
)  # fmt: skip
SMALL_MESSAGES = bundled(
    "small_messages",
    "many small all-reduces: separate, coalesced or flat; four ways to wait",
    Option("--send", "how", choices=("separate", "coalesced", "flat"), default="separate"),
    Option(
        "--wait", "when", choices=("at-once", "late", "together", "polling"), default="together",
    ),
    Option("--messages", "tensors, and products, a step", positive_int, "N", default=64),
    Option("--kb", "KiB of each tensor", positive_int, "N", on_gpu=256, on_shared=64, on_cpu=16),
    Option("--matrix", "rows and columns of the matrices", positive_int, "N", on_gpu=2048, on_cpu=192),
    *common("--figures"),
)  # fmt: skip
