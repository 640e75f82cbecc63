"""``python -m overlaptop.workloads``: list the bundled workloads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from overlaptop.commands.output import drop_output
from overlaptop.workloads.catalog import WORKLOADS, find


def main() -> None:
    """Print name, path and summary of each workload, or of one."""
    parser = argparse.ArgumentParser(
        prog="python -m overlaptop.workloads",
        description="List the bundled workloads. Start one with `overlaptop demo NAME`, or by its path: "
        "torchrun --nproc-per-node=2 -m overlaptop.agent PATH",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="list this one only")
    name = parser.parse_args().name
    found = find(name) if name is not None else None
    if name is not None and found is None:
        names = ", ".join(workload.name for workload in WORKLOADS)
        print(f"{parser.prog}: no workload is called {name!r}; there are: {names}", file=sys.stderr)
        sys.exit(2)
    here = Path.cwd()
    for workload in WORKLOADS if found is None else (found,):
        path = workload.path
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        print(f"{workload.name:18} {workload.summary}\n{'':18} {shown}")


def main_for_a_pipe() -> None:
    """Run `main`; a reader that leaves early (`| head`) is no error."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()


if __name__ == "__main__":
    main_for_a_pipe()
