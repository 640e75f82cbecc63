"""``python -m overlaptop.workloads``: list the bundled workloads."""

import argparse
import sys
from pathlib import Path

from overlaptop.commands.output import drop_output
from overlaptop.workloads.catalog import WORKLOADS


def main() -> None:
    """Print name, path and summary of each workload. A reader that leaves early (`| head`) is no error."""
    argparse.ArgumentParser(
        prog="python -m overlaptop.workloads",
        description="List the bundled workloads. `overlaptop demo NAME -- --help` lists one's options. "
        "Start it with `overlaptop demo NAME`, or by its path: "
        "torchrun --nproc-per-node=2 -m overlaptop.agent PATH",
    ).parse_args()
    here = Path.cwd()
    try:
        for workload in WORKLOADS:
            path = workload.path
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            print(f"{workload.name:18} {workload.summary}\n{'':18} {shown}")
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()


if __name__ == "__main__":
    main()
