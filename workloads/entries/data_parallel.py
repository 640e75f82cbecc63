"""Training with the model whole, or in shards, on each rank."""

import argparse

from overlaptop.workloads.entries.workload import bundled, gpt, is_installed
from overlaptop.workloads.options import Defaults, Option, OptionsError, count, positive_float, positive_int

_BUCKETS = Option("--bucket-cap-mb", "bucket size in MiB", positive_float, "MB", on_gpu=25.0, on_cpu=2.0)

DDP = bundled(
    "ddp",
    "a transformer under DDP: gradients in buckets, one by one, or after backward",
    Option(
        "--mode", "when gradients are reduced, and by whom",
        choices=("bucketed", "per-parameter", "bucketed-hooks", "after-backward"), default="bucketed",
    ),
    _BUCKETS,
    Option(
        "--accumulation", "batches whose gradients are summed before they are reduced (no_sync)",
        choices=("1", "2", "4", "8"), default="1",
    ),
    # 840 million parameters, 1.7 GB of gradients: about 50 ms a step on two H200s.
    *gpt(gpu_layers=16, gpu_width=2048),
)  # fmt: skip


def _zero_fits(options: argparse.Namespace, ranks: int, where: Defaults) -> None:
    del ranks
    if options.engine == "deepspeed" and not is_installed("deepspeed"):
        raise OptionsError("--engine deepspeed: DeepSpeed is not installed here (pip install deepspeed)")
    if options.engine == "deepspeed" and where == "cpu":
        raise OptionsError("--engine deepspeed: needs GPUs: on gloo DeepSpeed hangs")


ZERO = bundled(
    "zero",
    "a transformer under ZeRO-1/2, written out: sharded gradients and optimizer",
    Option(
        "--mode", "when ranks communicate", choices=("overlapped", "sequential"), default="overlapped",
    ),
    Option(
        "--stage", "1: optimizers are sharded; 2: gradients, too, which are freed when they are reduced",
        choices=("1", "2"), default="2",
    ),
    Option(
        "--engine", "what does it: this file, or DeepSpeed where it is installed",
        choices=("own", "deepspeed"), default="own",
    ),
    _BUCKETS,
    *gpt(gpu_layers=16, gpu_width=2048),
    fits=_zero_fits,
)  # fmt: skip
FSDP = bundled(
    "fsdp",
    "a transformer under FSDP2: weights gathered when a block needs them, or ahead",
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
    Option(
        "--limit-gathers", "blocks whose weights may be there at a time; the CPU waits for the GPU before "
        "it asks for more; 1: no overlap", positive_int, "N",
    ),
    # 2.5 billion parameters. A gather brings 0.4 GB for 1.6 Tflop of forward, which is meant to leave the
    # CPU time for FSDP2's hooks.
    *gpt(gpu_layers=12, gpu_width=4096),
)  # fmt: skip
