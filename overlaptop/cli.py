"""The command line. Commands import what they need when they run: ``--help`` is quick."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlaptop import __version__
from overlaptop.commands import CommandError, help_texts, say

if TYPE_CHECKING:
    from overlaptop.tui import TuiOptions


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
    if words[:1] == ["tune"]:
        return _tune(words[1:])
    if words[:1] == ["changes"]:
        return _changes(words[1:])
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

    return dashboard.run(options.job, replace(_look(options), readonly=options.readonly))


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
    parser = _set_parser()
    options = parser.parse_args(words)
    if options.json and options.change is not None:
        parser.error("--json goes without NAME=VALUE")
    from overlaptop.commands import setting

    if options.change is None:
        return setting.show(options.job, as_json=options.json)
    return setting.run(options.job, *options.change)


def _tune(words: list[str]) -> int:
    # Cut by hand, as for demo.
    cut = words.index("--") if "--" in words else len(words)
    parser = _tune_parser()
    options = parser.parse_args(words[:cut])
    if options.script is None and (options.nproc is not None or cut < len(words)):
        parser.error("--nproc and what follows -- go with SCRIPT")
    if options.script is not None and (options.job is not None or options.keep):
        parser.error("--job and --keep are for a job that runs: give no SCRIPT with them")
    from overlaptop.commands import tune

    least, most = options.range or (None, None)
    wish = tune.Wish(options.knob, least, most, options.budget, options.keep, options.json)
    if options.script is None:
        return tune.run_on_job(options.job, wish)
    return tune.run_on_script(options.script, words[cut + 1 :], options.nproc, wish)


def _changes(words: list[str]) -> int:
    options = _changes_parser().parse_args(words)
    from overlaptop.commands import changes

    return changes.run(options.job, as_json=options.json)


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
        help_texts.DESCRIPTION,
        help_texts.EPILOG,
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
    parser.add_argument(
        "--readonly",
        action="store_true",
        help="the dashboard only shows: it changes, captures and starts nothing",
    )
    _add_look(parser)
    return parser


def _capture_parser() -> argparse.ArgumentParser:
    parser = _parser("overlaptop capture", help_texts.CAPTURE_DESCRIPTION, help_texts.CAPTURE_EPILOG)
    parser.add_argument(
        "--steps", type=_positive, default=5, metavar="N", help="steps to record, 1 to 100 (default 5)"
    )
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the job, as --list names it")
    parser.add_argument("--json", action="store_true", help="print a record for each rank, not its path")
    return parser


def _set_parser() -> argparse.ArgumentParser:
    parser = _parser("overlaptop set", help_texts.SET_DESCRIPTION, help_texts.SET_EPILOG)
    parser.add_argument(
        "change", type=_change, nargs="?", metavar="NAME=VALUE", help="what to set, and to what"
    )
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the job, as --list names it")
    parser.add_argument(
        "--json", action="store_true", help="without NAME=VALUE: print records, not a table"
    )
    return parser


def _tune_parser() -> argparse.ArgumentParser:
    usage = "overlaptop tune [SCRIPT] [options] [-- script's options]"
    parser = _parser("overlaptop tune", help_texts.TUNE_DESCRIPTION, help_texts.TUNE_EPILOG, usage)
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="start this (default: a running job)")
    parser.add_argument(
        "--knob", default="bucket_cap_mb", metavar="NAME", help="the setting (default: %(default)s)"
    )
    parser.add_argument(
        "--range",
        type=_range,
        metavar="A:B",
        help="from A to B (default: 1:400 for bucket_cap_mb, else all that is allowed)",
    )
    parser.add_argument("--budget", type=_positive, metavar="STEPS", help="spend at most so many steps")
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the running job, as --list names it")
    parser.add_argument("--keep", action="store_true", help="leave the running job with the best value")
    parser.add_argument(
        "--nproc", type=_positive, metavar="N", help="SCRIPT's processes (default: one a GPU, else 2)"
    )
    parser.add_argument("--json", action="store_true", help="print records, not a table and a line")
    return parser


def _changes_parser() -> argparse.ArgumentParser:
    parser = _parser("overlaptop changes", help_texts.CHANGES_DESCRIPTION, help_texts.CHANGES_EPILOG)
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="of this job only")
    parser.add_argument("--json", action="store_true", help="print records, not a table")
    return parser


def _demo_parser() -> argparse.ArgumentParser:
    from overlaptop.workloads.catalog import WORKLOADS

    usage = "overlaptop demo [WORKLOAD] [--nproc N] [--steps N] [--json] [-- workload options]"
    parser = _parser("overlaptop demo", help_texts.DEMO_DESCRIPTION, usage=usage)
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
    parser = _parser("overlaptop analyze", help_texts.ANALYZE_DESCRIPTION, help_texts.ANALYZE_EPILOG)
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


def _change(text: str) -> tuple[str, int | None]:
    name, _, value = text.partition("=")
    if not (name and re.fullmatch(r"-?[0-9]{1,9}|script", value)):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE with a whole number or script, not {text!r}")
    return name, None if value == "script" else int(value)


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(-?[0-9]{1,9}):(-?[0-9]{1,9})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"must be A:B, two whole numbers with A <= B, not {text!r}")
    return int(found[1]), int(found[2])


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
