"""The dashboard: ``overlaptop`` without options, and what ``demo`` opens on its job."""

import argparse
import signal
import sys
from contextlib import closing, suppress
from dataclasses import replace

from overlaptop import tui
from overlaptop.commands.arguments import hosts_of
from overlaptop.commands.jobs import connect
from overlaptop.commands.output import CommandError, print_message, print_page
from overlaptop.fleet.hosts_session import LocalSession
from overlaptop.fleet.job_session import JobSelector
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.launch.local import LocalLauncher
from overlaptop.runs.run_log import RunLog
from overlaptop.runs.words import describe

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def run(options: argparse.Namespace) -> int:
    """Open the dashboard on the job that is named, the only one, or a list of them, here or there."""
    hosts, selector = hosts_of(options), JobSelector(key=options.job)
    screen = replace(screen_of(options), readonly=options.readonly)
    if hosts is not None:
        with closing(connect(hosts, selector, readonly=screen.readonly, tap=screen.recorder)) as there:
            return show(there, replace(screen, connections=there))
    with (
        closing(LocalSession(selector, readonly=screen.readonly, tap=screen.recorder)) as session,
        closing(LocalLauncher()) as launcher,
    ):
        screen = replace(screen, connections=session)
        return show(session, screen if screen.readonly else replace(screen, launcher=launcher))


def show(session: Session, screen: tui.TuiOptions) -> int:
    """Run the dashboard and print the job's report. After a signal the terminal, if any, is usable."""
    _leave_at_signals()
    try:
        status = tui.run(session, screen, ENDING_SIGNALS)
    finally:
        _leave_at_signals()  # what was started is still to be ended
        if screen.recorder.size_bytes is not None:
            with suppress(OSError):
                screen.recorder.end()
            print_message(screen.recorder.summary)
    job = screen.launcher.job if screen.launcher is not None else None
    ends = job is not None and job.poll() is None and job.key == session.job_key
    if status in (0, 128 + signal.SIGINT) and (words := last_words(screen.log, session.tick(), ends=ends)):
        print_page(words, ascii_only=screen.ascii)
    return status


def last_words(log: RunLog, snapshot: Snapshot, *, ends: bool = False) -> str:
    """Return the report of a job from its last snapshot and what `log` noted. Empty for a trace or without
    steps. ``ends``: the job ends with us.
    """
    if snapshot.totals.step is None or snapshot.hub_state is HubState.TRACE:
        return ""
    log.take(snapshot)
    run = log.report()
    if run is None:
        return ""
    run.ended |= ends
    return describe(run)


def _leave_at_signals() -> None:
    for signum in ENDING_SIGNALS:
        signal.signal(signum, lambda number, _frame: sys.exit(128 + number))


def screen_of(options: argparse.Namespace) -> tui.TuiOptions:
    """Return the screen's options. CommandError without a terminal to draw on, or for an unknown theme."""
    require_terminal(options.theme)
    return tui.TuiOptions(ascii=options.ascii, theme=options.theme, refresh_hz=options.refresh)


def require_terminal(theme: str | None = None) -> None:
    if theme is not None:
        from overlaptop.tui.draw.themes import PALETTES

        if theme not in PALETTES:
            raise CommandError(f"no theme {theme!r}; there are: {', '.join(PALETTES)}", 2)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("the dashboard needs a terminal; without one, use --json or --once", 2)
    if not sys.stderr.isatty():
        # Textual draws on stderr. The message also goes to stdout, since stderr is not visible.
        fault = "the dashboard draws on stderr, which is no terminal here: start it without 2>"
        print(f"overlaptop: {fault}", flush=True)  # noqa: T201
        raise CommandError(fault, 2)
