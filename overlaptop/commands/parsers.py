"""The options of each command: its parser, and what a value may be.

Nothing here imports what a command needs: ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from overlaptop import __version__
from overlaptop.commands import help_texts

HOST_OPTIONS = ("host", "hosts", "via", "python", "remote_dir", "rate")
"""What add_hosts gives a value to."""
_BYTES = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_MAX_BYTES_PER_S = 10**12


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


def watch_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop`` itself."""
    parser = _parser(
        "overlaptop",
        help_texts.DESCRIPTION,
        help_texts.EPILOG,
        "overlaptop [HOST ...] [options]\n       overlaptop demo [options] (see: overlaptop demo --help)\n"
        "       overlaptop analyze PATH [options] (see: overlaptop analyze --help)",
    )
    parser.add_argument("--version", action="version", version=f"overlaptop {__version__}")
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the job to watch, as --list names it")
    parser.add_argument("--list", action="store_true", help="list the jobs that run here or there, and end")
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
    add_hosts(parser, as_words=True)
    _add_look(parser)
    return parser


def capture_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop capture``."""
    parser = _parser("overlaptop capture", help_texts.CAPTURE_DESCRIPTION, help_texts.CAPTURE_EPILOG)
    parser.add_argument(
        "--steps", type=_positive, default=5, metavar="N", help="steps to record, 1 to 100 (default 5)"
    )
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the job, as --list names it")
    parser.add_argument("--json", action="store_true", help="print a record for each rank, not its path")
    add_hosts(parser)
    return parser


def set_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop set``."""
    parser = _parser("overlaptop set", help_texts.SET_DESCRIPTION, help_texts.SET_EPILOG)
    parser.add_argument(
        "change", type=_change, nargs="?", metavar="NAME=VALUE", help="what to set, and to what"
    )
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="the job, as --list names it")
    parser.add_argument(
        "--json", action="store_true", help="without NAME=VALUE: print records, not a table"
    )
    add_hosts(parser)
    return parser


def tune_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop tune``."""
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
    add_hosts(parser)
    return parser


def changes_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop changes``."""
    parser = _parser("overlaptop changes", help_texts.CHANGES_DESCRIPTION, help_texts.CHANGES_EPILOG)
    parser.add_argument("--job", type=_job_key, metavar="KEY", help="of this job only")
    parser.add_argument("--json", action="store_true", help="print records, not a table")
    return parser


def doctor_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop doctor``."""
    usage = "overlaptop doctor [HOST ...] [--python PATH] [--json]"
    parser = _parser("overlaptop doctor", help_texts.DOCTOR_DESCRIPTION, help_texts.DOCTOR_EPILOG, usage)
    parser.add_argument("--json", action="store_true", help="print a record for each finding")
    add_hosts(parser, as_words=True)
    return parser


def relay_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop relay``."""
    parser = _parser("overlaptop relay", help_texts.RELAY_DESCRIPTION, help_texts.RELAY_EPILOG)
    parser.add_argument(
        "--stdio", action="store_true", required=True, help="speak over standard input and output"
    )
    parser.add_argument(
        "--readonly", action="store_true", help="pass no command on to a job, and start nothing"
    )
    return parser


def demo_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop demo``."""
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


def analyze_parser() -> argparse.ArgumentParser:
    """Of ``overlaptop analyze``."""
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


def add_hosts(parser: argparse.ArgumentParser, *, as_words: bool = False) -> None:
    """The options that name other hosts; `as_words`: as bare words also. See commands.hosts.named."""
    about = help_texts.HOSTS if as_words else help_texts.HOSTS_BRIEF
    group = parser.add_argument_group("other hosts", about)
    if as_words:
        parser.add_argument("host", nargs="*", metavar="HOST", help="watch the jobs of this host instead")
    else:
        group.add_argument(
            "--host", action="append", default=[], metavar="HOST", help="of this host (repeat it)"
        )
    group.add_argument(
        "--hosts", type=Path, metavar="FILE", help="more hosts: one a line, # begins a comment"
    )
    group.add_argument(
        "--via",
        action="append",
        default=[],
        metavar="COMMAND",
        help="the host that this command prefix reaches: 'sudo -u trainer', 'ssh -J login gpu-a'",
    )
    group.add_argument(
        "--python", default="", metavar="PATH", help="the interpreter there (default: its newest job's)"
    )
    group.add_argument(
        "--remote-dir", default="", metavar="DIR", help="the folder of the jobs' sockets there"
    )
    group.add_argument(
        "--rate",
        type=_bytes_per_s,
        default=0,
        metavar="BYTES",
        help="a second from each host at most: 20k, 1M (default 512 KiB, and less on a narrow line)",
    )


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


def _bytes_per_s(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([kKmMgG]?)(?:i?[bB])?(?:/s)?", text)
    value = round(float(found[1]) * _BYTES[found[2].lower()]) if found else 0
    if not 1_000 <= value <= _MAX_BYTES_PER_S:
        raise argparse.ArgumentTypeError(f"must be 1k bytes a second or more, as 20k or 1M, not {text!r}")
    return value


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
