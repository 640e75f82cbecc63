"""Training with the model whole, or in shards, on each rank."""

from __future__ import annotations

from overlaptop.workloads.entries.workload import bundled, gpt
from overlaptop.workloads.options import Option, count, positive_float

DDP = bundled(
    "ddp",
    "a transformer under DDP: gradient buckets reduced during backward, or after it",
    "Train a small GPT under DDP.",
    "the communication lane of each rank's timeline lies below backward, and with --no-overlap behind it: "
    "the overlap falls to 0, and the step becomes longer by what was hidden.",
    Option("--bucket-cap-mb", "DDP's bucket size in MiB", positive_float, "MB", on_gpu=25.0, on_cpu=2.0),
    Option(
        "--no-overlap",
        "reduce gradients after backward, with nothing beside it; the bucket size is then fixed",
        default=False,
    ),
    # 840 million parameters, 1.7 GB of gradients: about 50 ms a step on two H200s.
    *gpt(gpu_layers=16, gpu_width=2048),
)
FSDP = bundled(
    "fsdp",
    "a transformer under FSDP2: weights gathered as each block needs them, or ahead",
    "Train a small GPT under FSDP2.",
    "gathers move to the left of the block that needs them as the prefetch gets deeper, and exposed time "
    "falls.",
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
    *gpt(gpu_layers=12, gpu_width=4096),
)  # fmt: skip
