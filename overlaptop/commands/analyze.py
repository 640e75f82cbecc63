"""``overlaptop analyze``: torch.profiler traces as records, as a table or in the dashboard."""

from __future__ import annotations

from pathlib import Path

from overlaptop.console.arguments import add_screen, make_parser, screen_of

DESCRIPTION = """\
Show what torch.profiler traces say of overlap: in the dashboard, or as a table where stdout is no terminal.
PATH is one trace (.json or .json.gz), a folder with one for each rank, or several of both. ProfilerStep
annotations make the steps; without them, the whole trace is one.
"""
EPILOG = """\
--json prints a line for each rank and step, as overlaptop --json does, and then one for each rank over the
whole trace, from its first GPU activity to its last: {"type": "rank", "rank", "overlap", "comm_ns",
"hidden_ns", "exposed_ns", "compute_ns", "copy_only_ns", "idle_ns", "fused_ns", "compute_exact", "wait_ns",
"transfer_ns", "unsplit_ns", "exposed_wait_ns", "exposed_transfer_ns", "late_rank"}; and one for each
collective of each step, and for each finding.

Waiting is told from transferring by comparing the traces of all ranks; null: nothing could be compared.

--hta takes these rank lines by the rules of HolisticTraceAnalysis 0.5.0 (get_comm_comp_overlap), which
defines overlap in the same way. Four things differ:
  window         where the traces have two ProfilerSteps or more, it leaves out what was launched before the
                 trace began, and what was launched after the last ProfilerStep had begun on the GPU
  rounding       it rounds starts up and ends down to whole microseconds
  communication  only kernels called nccl*Kernel*: peer-to-peer copies are memory, and other libraries'
                 kernels (NVSHMEM, symmetric memory, DeepEP, ...) computation
  computation    not kernels with Sync or Memcpy in their names; synchronisation events with a stream are

Traces are refused as a whole when one of them is damaged, or when ranks have unequal numbers of traces.
Files without a rank and without GPU activity are left out, and named.
exit status: 0; 2 for a usage error and for a file that is no trace, is cut off or cannot be read.
"""


def run(words: list[str]) -> int:
    """Read the traces, and show them."""
    parser = make_parser("overlaptop analyze", DESCRIPTION, EPILOG)
    parser.add_argument("paths", type=Path, metavar="PATH", nargs="+", help="a trace, or a folder of them")
    parser.add_argument(
        "--json", action="store_true", help="print records instead of opening the dashboard"
    )
    parser.add_argument(
        "--hta",
        action="store_true",
        help="whole traces by HolisticTraceAnalysis's rules (see below); without --json: as a table",
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="this step instead of the whole trace; on the screen, begin there",
    )
    parser.add_argument(
        "--cycle", type=int, metavar="N", help="of several traces of each rank the N-th, not the last"
    )
    parser.add_argument(
        "--lane",
        action="append",
        default=[],
        metavar="LANE=REGEX",
        help="put GPU activities whose name matches into compute, comm, copy, fused or idle: "
        "comm=my_allreduce (repeat it; the first match wins)",
    )
    add_screen(parser)
    options = parser.parse_args(words)
    if options.hta and options.step is not None:
        parser.error("--hta is of whole traces: leave out --step")
    from overlaptop.console import analyze

    return analyze.run(
        options.paths,
        options.lane,
        by_hta=options.hta,
        screen=None if options.json else screen_of(options),
        step=options.step,
        cycle=options.cycle,
    )
