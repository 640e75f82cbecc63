"""The command line. Commands import what they need when they run: ``--help`` is quick."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from overlaptop.commands import parsers
from overlaptop.console import CommandError, say

if TYPE_CHECKING:
    from overlaptop.console.hosts import Hosts
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
    # A parser for each command, not one with subcommands: argparse would let `overlaptop --json demo` pass,
    # and forget the --json.
    command = COMMANDS.get(words[0]) if words else None
    return _watch(words) if command is None else command(words[1:])


def _watch(words: list[str]) -> int:
    parser = parsers.watch_parser()
    options = parser.parse_intermixed_args(words)
    if misplaced := next((word for word in options.host if word in COMMANDS), None):
        parser.error(f"{misplaced} is a command and comes first; a host of that name is ssh://{misplaced}")
    if options.steps is not None and (options.once or not options.json):
        parser.error("--steps goes with --json")
    if options.list and (options.once or options.wait or options.job is not None):
        parser.error("--list goes with no other option than --json, and hosts")
    try:
        return _watch_with(options)
    except CommandError as failure:
        # Only now: a host may have any name.
        if meant := _meant(options.host):
            raise CommandError(f"{failure}; did you mean: overlaptop {meant}", failure.status) from failure
        raise


def _watch_with(options: argparse.Namespace) -> int:
    hosts = _hosts(options)
    if options.list:
        from overlaptop.commands import jobs

        return jobs.run(hosts, as_json=options.json)
    if options.once:
        from overlaptop.commands import once

        return once.run(
            options.job, hosts, as_json=options.json, ascii_only=options.ascii, wait=options.wait
        )
    if options.json:
        from overlaptop.commands import stream

        return stream.run(options.job, options.steps, hosts, wait=options.wait)
    from overlaptop.commands import dashboard

    return dashboard.run(options.job, replace(_look(options), readonly=options.readonly), hosts)


def _meant(words: Sequence[str]) -> str:
    """The command or option that one of these words, taken for hosts, may have been meant for; or empty."""
    from difflib import get_close_matches

    meant = {**{name: name for name in COMMANDS}, **_ALSO_MEANT}
    close = (get_close_matches(word, meant, 1, cutoff=0.75) for word in words)
    return next((meant[found[0]] for found in close if found), "")


def _hosts(options: argparse.Namespace) -> Hosts | None:
    """The hosts that the command line names; None: none."""
    if not any(vars(options)[name] for name in parsers.HOST_OPTIONS):
        return None
    from overlaptop.console import hosts

    return hosts.named(options)


def _demo(words: list[str]) -> int:
    # Cut by hand: argparse would take a workload's options for ours.
    cut = words.index("--") if "--" in words else len(words)
    options = parsers.demo_parser().parse_args(words[:cut])
    from overlaptop.commands import demo

    return demo.run(
        options.workload,
        words[cut + 1 :],
        nproc=options.nproc,
        steps=options.steps,
        look=None if options.json else _look(options),
    )


def _analyze(words: list[str]) -> int:
    options = parsers.analyze_parser().parse_args(words)
    from overlaptop.commands import analyze

    return analyze.run(
        options.path,
        options.lane,
        by_hta=options.hta,
        look=None if options.json else _look(options),
    )


def _capture(words: list[str]) -> int:
    options = parsers.capture_parser().parse_args(words)
    hosts = _hosts(options)
    from overlaptop.commands import capture

    return capture.run(options.job, options.steps, hosts, as_json=options.json)


def _estimate(words: list[str]) -> int:
    from overlaptop.commands.estimate_options import parse

    question, as_json = parse(words)
    from overlaptop.commands import estimate

    return estimate.run(question, as_json=as_json)


def _set(words: list[str]) -> int:
    parser = parsers.set_parser()
    options = parser.parse_args(words)
    if options.json and options.change is not None:
        parser.error("--json goes without NAME=VALUE")
    hosts = _hosts(options)
    from overlaptop.commands import setting

    if options.change is None:
        return setting.show(options.job, hosts, as_json=options.json)
    name, value = options.change
    return setting.run(options.job, name, value, hosts)


def _tune(words: list[str]) -> int:
    # Cut by hand, as for demo.
    cut = words.index("--") if "--" in words else len(words)
    parser = parsers.tune_parser()
    options = parser.parse_args(words[:cut])
    if options.script is None and (options.nproc is not None or cut < len(words)):
        parser.error("--nproc and what follows -- go with SCRIPT")
    if options.script is not None and (options.job is not None or options.keep):
        parser.error("--job and --keep are for a job that runs: give no SCRIPT with them")
    hosts = _hosts(options)
    if options.script is not None and hosts is not None:
        parser.error("SCRIPT is started here: give no host with it")
    from overlaptop.commands import tune

    least, most = options.range or (None, None)
    wish = tune.Wish(options.knob, least, most, options.budget, options.keep, options.json)
    if options.script is None:
        return tune.run_on_job(options.job, wish, hosts)
    return tune.run_on_script(options.script, words[cut + 1 :], options.nproc, wish)


def _changes(words: list[str]) -> int:
    options = parsers.changes_parser().parse_args(words)
    from overlaptop.commands import changes

    return changes.run(options.job, as_json=options.json)


def _doctor(words: list[str]) -> int:
    parser = parsers.doctor_parser()
    options = parser.parse_intermixed_args(words)
    if options.rate:
        parser.error("--rate is for watching a host")
    python = ""
    if not (options.host or options.hosts or options.via):
        python, options.python = options.python, ""
    hosts = _hosts(options)
    from overlaptop.commands import doctor

    return doctor.run(python, hosts, as_json=options.json)


def _relay(words: list[str]) -> int:
    options = parsers.relay_parser().parse_args(words)
    from overlaptop.commands import relay

    return relay.run(readonly=options.readonly)


def _look(options: argparse.Namespace) -> TuiOptions:
    from overlaptop.tui import TuiOptions

    return TuiOptions(ascii=options.ascii, theme=options.theme, refresh_hz=options.refresh)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "analyze": _analyze,
    "capture": _capture,
    "changes": _changes,
    "demo": _demo,
    "doctor": _doctor,
    "estimate": _estimate,
    "relay": _relay,
    "set": _set,
    "tune": _tune,
}
"""What a command line may begin with; all else is a host or an option of the dashboard."""
_ALSO_MEANT = {
    "list": "--list",
    "jobs": "--list",
    "once": "--once",
    "status": "--once",
    "json": "--json",
    "help": "--help",
    "version": "--version",
}
"""What may be typed as a command and is an option."""
