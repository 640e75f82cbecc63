"""``overlaptop demo``: start a bundled workload, watch it, end it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from overlaptop import tui
from overlaptop.commands import CommandError, dashboard, say
from overlaptop.commands.stream import RecordWriter, stream
from overlaptop.fleet.session import JobSelector, JobSession
from overlaptop.launcher import Launcher, LaunchError, bundled, place
from overlaptop.workloads import catalog

END_LIMIT_S = 5.0
"""From a hub's word that every rank has gone to torchrun's exit."""


def run(
    name: str,
    options: Sequence[str],
    *,
    nproc: int | None,
    steps: int | None,
    look: tui.TuiOptions | None,
) -> int:
    """Run workload `name` with `options` until it ends, we are told to end, or `steps` are done.

    `look` is the dashboard's; None: print records instead.
    """
    if look is not None:
        dashboard.require_screen(look)
    if catalog.find(name) is None:
        names = ", ".join(each.name for each in catalog.WORKLOADS)
        raise CommandError(f"no workload is called {name!r}; there are: {names}", 2)
    if steps is not None and look is not None:
        # The job itself stops then, and the dashboard goes on showing its last steps.
        options = ["--steps", str(steps), *options]
    try:
        placement = place(nproc)
        say(f"{name} on {placement.in_words}")
        with bundled(name, options, placement) as launcher:
            launcher.start()
            session = JobSession(JobSelector(matches=launcher.owns))
            try:
                if look is None:
                    return _print_records(launcher, session, steps)
                look = replace(
                    look, launch_status=lambda: _launch_status(launcher), ends_on_quit=lambda: name
                )
                status = dashboard.show(session, look)
                if any(view.ended for view in session.tick().ranks):
                    _await_exit(launcher)
                return _verdict(launcher) or status
            finally:
                session.close()
    except LaunchError as fault:
        raise CommandError(str(fault)) from fault


def _print_records(launcher: Launcher, session: JobSession, steps: int | None) -> int:
    writer = RecordWriter(sys.stdout, steps)
    if stream(session, writer, job_gone=lambda: launcher.poll() is not None):
        return 0
    _await_exit(launcher)
    return _verdict(launcher)


def _await_exit(launcher: Launcher) -> None:
    deadline_s = time.monotonic() + END_LIMIT_S
    while launcher.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)


def _launch_status(launcher: Launcher) -> str:
    if launcher.poll() is None:
        return "the job is starting"
    return "the job ended: " + (launcher.complaint() or ["it said nothing"])[-1]


def _verdict(launcher: Launcher) -> int:
    """Say why the job failed if it did. Returns 0 for a job that still runs: we are about to end it."""
    status = launcher.poll()
    if not status:
        return 0
    for line in launcher.complaint():
        print(line, file=sys.stderr)  # noqa: T201
    raise CommandError("the job failed", 2 if launcher.usage_error else 1)
