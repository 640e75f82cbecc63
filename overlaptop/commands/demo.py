"""``overlaptop demo``: start a bundled workload, watch it, end it."""

from __future__ import annotations

from overlaptop.console.arguments import add_screen, make_parser, parse_with_script, positive, screen_of

DESCRIPTION = """\
Start a bundled training job under torchrun, watch it, and end it: NCCL on the GPUs that are there, two
ranks on one if there is only one; else gloo on two processes. `python -m overlaptop.workloads` lists
the workloads. What follows -- goes to the workload: overlaptop demo ddp -- --bucket-cap-mb 100
"""


def run(words: list[str]) -> int:
    """Start it, and open the dashboard on it or print its records."""
    from overlaptop.workloads.catalog import WORKLOADS

    usage = "overlaptop demo [WORKLOAD] [--nproc N] [--steps N] [--json] [-- workload options]"
    parser = make_parser("overlaptop demo", DESCRIPTION, usage=usage)
    names = ", ".join(workload.name for workload in WORKLOADS)
    parser.add_argument(
        "workload", nargs="?", default="ddp", metavar="WORKLOAD", help=f"{names} (default: ddp)"
    )
    parser.add_argument(
        "--nproc", type=positive, metavar="N", help="processes (default: one a GPU, at least 2)"
    )
    parser.add_argument("--steps", type=positive, metavar="N", help="end the job after N steps")
    parser.add_argument(
        "--json", action="store_true", help="print records instead of opening the dashboard"
    )
    add_screen(parser)
    options, workload_options = parse_with_script(parser, words)
    from overlaptop.console import demo

    return demo.run(
        options.workload,
        workload_options,
        nproc=options.nproc,
        steps=options.steps,
        screen=None if options.json else screen_of(options),
    )
