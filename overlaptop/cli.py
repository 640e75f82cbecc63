"""The command line. Commands import what they need when they run: ``--help`` is quick."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop import __version__
from overlaptop.commands import CommandError, say

if TYPE_CHECKING:
    from overlaptop.tui import TuiOptions

DESCRIPTION = """\
Show, while a multi-GPU training job runs, whether its communication hides behind compute.

  torchrun --nproc-per-node=8 -m overlaptop.agent train.py    the job, an agent in each rank
  overlaptop                                                  the dashboard, in another terminal
  overlaptop demo                                             both at once, with a bundled job
  overlaptop capture                                          torch.profiler on all ranks, for 5 steps
  overlaptop set bucket_cap_mb=50                             another bucket size for its DDP model
  overlaptop analyze PATH                                     the same for torch.profiler traces
  overlaptop estimate --help                                  pen and paper: overlap, bucket size, prefetch
"""
EPILOG = """\
exit status: 0, or 1 when there is no job or it failed, 2 for a usage error or when --job is needed,
130 after Ctrl-C. stdout carries data, stderr talk.
environment: OVERLAPTOP_DIR, the folder of the jobs' sockets (mode 0700); NO_COLOR.
"""
DEMO_DESCRIPTION = """\
Start a bundled training job under torchrun, watch it, and end it: NCCL on the GPUs that are there,
else gloo on two processes. `python -m overlaptop.workloads` lists the workloads. What follows -- goes
to the workload: overlaptop demo ddp -- --bucket-cap-mb 100
"""
CAPTURE_DESCRIPTION = """\
Have all ranks of a running job run torch.profiler for N steps, from the same step on, and write a Chrome
trace each (rank0.json.gz, ...) to a new folder below overlaptop-captures, where the job was started. A
bundled workload obeys; a job of your own does when it was started with --control:

  torchrun --nproc-per-node=8 -m overlaptop.agent --control train.py
"""
CAPTURE_EPILOG = """\
stdout gets a line for each rank whose trace is written, stderr the progress. A record holds type
("capture"), job, id, rank, state, step (that on which the ranks agreed: the profiler warms up in it), path,
reason and live_overlap (a fraction: measured by the agent in the steps just before; null: not known).
exit status: 0 when all ranks have written, 1 when not, 2 for a usage error, 130 after Ctrl-C (the job and
a capture under way go on).
"""
SET_DESCRIPTION = """\
Change a setting of a running job, on all its ranks in the same step, or on none. A bundled workload obeys;
a job of your own does when it was started with --control:

  torchrun --nproc-per-node=8 -m overlaptop.agent --control train.py

What can be set:
  bucket_cap_mb  MiB a bucket of its DistributedDataParallel model, 1 to 10000. Its buckets are made anew
                 between two steps; gradients stay what they were, but for the order of sums with more than
                 two ranks. The model must be the only one, and not compiled
"""
SET_EPILOG = """\
stdout gets a line when all ranks have changed it (bucket_cap_mb 25 -> 50 at step 1234), stderr progress.
The agreed step and the one or two after it, until the new buckets are in use, are left out of the figures.
exit status: 0 when all ranks have changed it, 1 when none has and when one failed, 2 for a usage error, 130
after Ctrl-C (the job and a change under way go on).
"""
ANALYZE_DESCRIPTION = """\
Show what torch.profiler traces say of overlap: in the dashboard, or as a table where stdout is no terminal.
PATH is one trace (.json or .json.gz), or a folder with one for each rank. ProfilerStep annotations make the
steps; without them, the whole trace is one.
"""
ANALYZE_EPILOG = """\
--json prints a line for each rank and step, as overlaptop --json does, and then one for each rank over the
whole trace, from its first GPU activity to its last: {"type": "rank", "rank", "overlap", "comm_ns",
"hidden_ns", "exposed_ns", "compute_ns", "copy_only_ns", "idle_ns"}.

--hta takes these rank lines by the rules of HolisticTraceAnalysis 0.5.0 (get_comm_comp_overlap), which
defines overlap in the same way. Four things differ:
  window         where the traces have two ProfilerSteps or more, it leaves out what was launched before the
                 trace began, and what was launched after the last ProfilerStep had begun on the GPU
  rounding       it rounds starts up and ends down to whole microseconds
  communication  only kernels called nccl*Kernel*: peer-to-peer copies are memory, and other libraries'
                 kernels (NVSHMEM, symmetric memory, DeepEP, ...) computation
  computation    not kernels with Sync or Memcpy in their names; synchronisation events with a stream are

A folder is refused as a whole when one of its traces cannot be used, or when two are of the same rank.
exit status: 0; 2 for a usage error and for a file that is no trace, is cut off or cannot be read.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (None: ours) asks for and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except CommandError as failure:
        say(str(failure))
        return failure.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has had enough (`| head`). Python would flush stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    # Two parsers, not one with a subcommand: argparse would let `overlaptop --json demo` pass, and
    # forget the --json.
    if words[:1] == ["analyze"]:
        return _analyze(words[1:])
    if words[:1] == ["capture"]:
        return _capture(words[1:])
    if words[:1] == ["set"]:
        return _set(words[1:])
    if words[:1] == ["estimate"]:
        return _estimate(words[1:])
    return _demo(words[1:]) if words[:1] == ["demo"] else _watch(words)


def _watch(words: list[str]) -> int:
    parser = _watch_parser()
    options = parser.parse_args(words)
    if options.steps is not None and (options.once or not options.json):
        parser.error("--steps goes with --json")
    if options.list:
        if options.once or options.wait or options.job is not None:
            parser.error("--list goes with no other option than --json")
        from overlaptop.commands import jobs

        return jobs.run(as_json=options.json)
    if options.once:
        from overlaptop.commands import once

        return once.run(options.job, as_json=options.json, ascii_only=options.ascii, wait=options.wait)
    if options.json:
        from overlaptop.commands import stream

        return stream.run(options.job, options.steps, wait=options.wait)
    from overlaptop.commands import dashboard

    return dashboard.run(options.job, _look(options))


def _demo(words: list[str]) -> int:
    # Cut by hand: argparse would take a workload's options for ours.
    cut = words.index("--") if "--" in words else len(words)
    options = _demo_parser().parse_args(words[:cut])
    from overlaptop.commands import demo

    return demo.run(
        options.workload,
        words[cut + 1 :],
        nproc=options.nproc,
        steps=options.steps,
        look=None if options.json else _look(options),
    )


def _analyze(words: list[str]) -> int:
    options = _analyze_parser().parse_args(words)
    from overlaptop.commands import analyze

    return analyze.run(
        options.path,
        options.lane,
        by_hta=options.hta,
        look=None if options.json else _look(options),
    )


def _capture(words: list[str]) -> int:
    options = _capture_parser().parse_args(words)
    from overlaptop.commands import capture

    return capture.run(options.job, options.steps, as_json=options.json)


def _estimate(words: list[str]) -> int:
    from overlaptop.commands.estimate_options import parse

    question, as_json = parse(words)
    from overlaptop.commands import estimate

    return estimate.run(question, as_json=as_json)


def _set(words: list[str]) -> int:
    options = _set_parser().parse_args(words)
    from overlaptop.commands import setting

    return setting.run(options.job, *options.change)


def _look(options: argparse.Namespace) -> TuiOptions:
    from overlaptop.tui import TuiOptions

    return TuiOptions(ascii=options.ascii, theme=options.theme, refresh_hz=options.refresh)


def _parser(
    prog: str, description: str, epilog: str | None = None, usage: str | None = None
) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=epilog,
        usage=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _watch_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "overlaptop",
        DESCRIPTION,
        EPILOG,
        "overlaptop [options]\n       overlaptop demo [options] (see: overlaptop demo --help)\n"
        "       overlaptop analyze PATH [options] (see: overlaptop analyze --help)",
    )
    parser.add_argument("--version", action="version", version=f"overlaptop {__version__}")
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the job to watch, as --list names it")
    parser.add_argument("--list", action="store_true", help="list the jobs that run here, and end")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a line of JSON for each rank and step, until the job ends",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print the present state as a table (--json: as records), and end",
    )
    parser.add_argument(
        "--steps", type=_positive, metavar="N", help="with --json: end after N steps of each rank"
    )
    parser.add_argument(
        "--wait", action="store_true", help="with --json or --once: wait for a job where there is none"
    )
    _add_look(parser)
    return parser


def _capture_parser() -> argparse.ArgumentParser:
    parser = _parser("overlaptop capture", CAPTURE_DESCRIPTION, CAPTURE_EPILOG)
    parser.add_argument(
        "--steps", type=_positive, default=5, metavar="N", help="steps to record, 1 to 100 (default 5)"
    )
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the job, as --list names it")
    parser.add_argument("--json", action="store_true", help="print a record for each rank, not its path")
    return parser


def _set_parser() -> argparse.ArgumentParser:
    parser = _parser("overlaptop set", SET_DESCRIPTION, SET_EPILOG)
    parser.add_argument("change", type=_change, metavar="NAME=VALUE", help="what to set, and to what")
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the job, as --list names it")
    return parser


def _demo_parser() -> argparse.ArgumentParser:
    from overlaptop.workloads.catalog import WORKLOADS

    usage = "overlaptop demo [WORKLOAD] [--nproc N] [--steps N] [--json] [-- workload options]"
    parser = _parser("overlaptop demo", DEMO_DESCRIPTION, usage=usage)
    names = ", ".join(workload.name for workload in WORKLOADS)
    parser.add_argument(
        "workload", nargs="?", default="ddp", metavar="WORKLOAD", help=f"{names} (default: ddp)"
    )
    parser.add_argument(
        "--nproc", type=_positive, metavar="N", help="processes (default: one a GPU, else 2 on the CPU)"
    )
    parser.add_argument("--steps", type=_positive, metavar="N", help="end the job after N steps")
    parser.add_argument(
        "--json", action="store_true", help="print records instead of opening the dashboard"
    )
    _add_look(parser)
    return parser


def _analyze_parser() -> argparse.ArgumentParser:
    parser = _parser("overlaptop analyze", ANALYZE_DESCRIPTION, ANALYZE_EPILOG)
    parser.add_argument("path", type=Path, metavar="PATH", help="a trace, or a folder of them")
    parser.add_argument(
        "--json", action="store_true", help="print records instead of opening the dashboard"
    )
    parser.add_argument(
        "--hta",
        action="store_true",
        help="whole traces by HolisticTraceAnalysis's rules (see below); without --json: as a table",
    )
    parser.add_argument(
        "--lane",
        action="append",
        default=[],
        metavar="LANE=REGEX",
        help="put GPU activities whose name matches into compute, comm or copy: comm=my_allreduce "
        "(repeat it; the first match wins)",
    )
    _add_look(parser)
    return parser


def _add_look(parser: argparse.ArgumentParser) -> None:
    look = parser.add_argument_group("the screen")
    look.add_argument(
        "--ascii", "--no-unicode", action="store_true", help="draw with ASCII characters only"
    )
    look.add_argument("--theme", metavar="NAME", help="the dashboard's colours; t changes them")
    look.add_argument(
        "--refresh",
        type=_refresh_hz,
        default=4.0,
        metavar="HZ",
        help="redraws a second, 0.1 to 10 (default 4); lower it on a slow line",
    )


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10**9):
        raise argparse.ArgumentTypeError(f"must be a positive whole number, not {text!r}")
    return int(text)


def _change(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not (name and equals and value.isascii() and value.isdecimal() and len(value) < 10):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE with a whole number, not {text!r}")
    return name, int(value)


def _refresh_hz(text: str) -> float:
    try:
        refresh_hz = float(text)
    except ValueError:
        refresh_hz = 0.0
    if not 0.1 <= refresh_hz <= 10:
        raise argparse.ArgumentTypeError(f"must be from 0.1 to 10, not {text!r}")
    return refresh_hz


def _job_key(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]{1,40}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no job's key; --list names them")
    return text
