"""The dashboard: ``overlaptop`` without options, and what ``demo`` opens on its job."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from overlaptop import text, tui
from overlaptop.commands.output import CommandError, plain, print_data
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.launch.local import LocalLauncher
from overlaptop.report import troubles
from overlaptop.report.figures import totals_in_words
from overlaptop.report.order import all_see_gaps

if TYPE_CHECKING:
    from overlaptop.commands.hosts import Hosts

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
MOST_FINDINGS = 3
"""Printed when the dashboard is left."""


def run(key: str | None, screen: tui.TuiOptions, hosts: Hosts | None = None) -> int:
    """Open the dashboard on the job called `key`, on the only one, or on a list to choose from: of this
    machine, or of other hosts.

    Workloads that are started from it end with it.
    """
    require_terminal(screen)
    selector = JobSelector(key=key)
    if hosts is not None:
        from overlaptop.commands.hosts import connect

        with closing(connect(hosts, selector, readonly=screen.readonly)) as connections:
            return show(connections, replace(screen, connections=connections))
    with (
        closing(JobSession(selector, readonly=screen.readonly)) as session,
        closing(LocalLauncher()) as launcher,
    ):
        return show(session, screen if screen.readonly else replace(screen, launcher=launcher))


def show(session: Session, screen: tui.TuiOptions) -> int:
    """Run the dashboard, then print a summary; give the terminal back also when a signal ends us.

    After SIGHUP there may be no terminal, and after SIGTERM the shell still needs its own.
    """
    _leave_at_signals()
    began_s = time.monotonic()
    try:
        status = tui.run(session, screen, ENDING_SIGNALS)
    finally:
        _leave_at_signals()  # what was started is still to be ended
    if status == 0 and (words := summary(session.tick(), time.monotonic() - began_s)):
        print_data(plain(words) if screen.ascii else words)
    return status


def summary(snapshot: Snapshot, watched_s: float) -> str:
    """Return a few lines: the job and its figures, what is wrong, and its findings; empty without steps."""
    # The rules take 50 ms to import.
    from overlaptop.commands.findings import found_in
    from overlaptop.findings.first_line import first_line

    job, totals = snapshot.job, snapshot.totals
    if job is None or totals.step is None or snapshot.hub_state is HubState.TRACE:
        return ""
    overlap = totals_in_words(totals, exact=all_see_gaps(snapshot.ranks))["overlap"]
    ranks, watched = text.plural(job.world_size, "rank"), text.age(watched_s)
    lines = [
        f"{job.script}, {ranks}, watched for {watched}: step {text.count(totals.step)}, "
        f"{text.duration(totals.step_ns)} a step, overlap {overlap}"
    ]
    found = found_in(snapshot)
    said, trouble = first_line(snapshot, found), trouble_of(snapshot)
    lines += [troubles.in_full(trouble)] if trouble is not None else []
    lines += [said.because.words] if said is not None else []
    told = (said.rule, said.cause_rule) if said is not None else ()
    others = [each for each in found if each.rule not in told]
    lines += [f"{each.headline}, {each.certainty.value}" for each in others[:MOST_FINDINGS]]
    return "\n".join(map(text.printable, lines))


def _leave_at_signals() -> None:
    for signum in ENDING_SIGNALS:
        signal.signal(signum, lambda number, _frame: sys.exit(128 + number))


def require_terminal(screen: tui.TuiOptions) -> None:
    """CommandError where there is no terminal to draw on, or no such theme to draw with."""
    if screen.theme is not None:
        from overlaptop.tui.draw.themes import PALETTES

        if screen.theme not in PALETTES:
            raise CommandError(f"no theme {screen.theme!r}; there are: {', '.join(PALETTES)}", 2)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("the dashboard needs a terminal; without one, use --json or --once", 2)
    if not sys.stderr.isatty():
        # Textual draws there. Printed on stdout as well: the person does not see the other one.
        fault = "the dashboard draws on stderr, which is no terminal here: start it without 2>"
        print(f"overlaptop: {fault}", flush=True)  # noqa: T201
        raise CommandError(fault, 2)
