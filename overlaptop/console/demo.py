"""The work of ``overlaptop demo``: start a bundled workload, watch it, end it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from overlaptop import tui
from overlaptop.console import CommandError, dashboard, job_failure, print_data, print_message
from overlaptop.console.stream import RecordWriter, stream
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.launch.launcher import Launcher, of_workload, place
from overlaptop.launch.local import LocalLauncher
from overlaptop.launch.request import LaunchError, LaunchPhase, LaunchRequest
from overlaptop.workloads import catalog
from overlaptop.workloads.options import OptionsError

END_LIMIT_S = 15.0
"""From a hub's report that every rank has ended to torchrun's exit."""


def run(
    name: str,
    options: Sequence[str],
    *,
    nproc: int | None,
    steps: int | None,
    screen: tui.TuiOptions | None,
) -> int:
    """Run workload `name` with `options` until it ends, a signal ends us, or `steps` are done.

    `screen`: the options of the dashboard, from which another workload may be run instead; None: print
    records.
    """
    workload = catalog.find(name)
    if workload is None:
        names = ", ".join(each.name for each in catalog.WORKLOADS)
        raise CommandError(f"no workload is called {name!r}; there are: {names}", 2)
    if screen is not None:
        dashboard.require_terminal(screen)
    if {"-h", "--help"} & set(options):
        print_data(workload.parser().format_help())
        return 0
    try:
        given = workload.check(options)
        placement = place(nproc, str(given.get("device", "auto")))
        print_message(f"{workload.name} on {placement.in_words}")
        if screen is None:
            with of_workload(workload, options, placement) as launcher:
                launcher.start()
                return _print_records(launcher, steps)
    except OptionsError as fault:
        raise CommandError(f"{workload.name}: {fault}", 2) from fault
    except LaunchError as fault:
        raise CommandError(str(fault)) from fault
    if steps is not None:
        # The job itself stops then, and the dashboard goes on showing its last steps.
        options = ["--steps", str(steps), *options]
    return _show(LaunchRequest(workload.name, tuple(options), nproc), screen)


def _print_records(launcher: Launcher, steps: int | None) -> int:
    with closing(JobSession(JobSelector(matches=launcher.owns))) as session:
        writer = RecordWriter(sys.stdout, steps)
        if stream(session, writer, job_gone=lambda: launcher.poll() is not None, detail=True):
            return 0
    _await(lambda: launcher.poll() is not None)
    if launcher.poll():
        raise job_failure(launcher)
    return 0


def _show(request: LaunchRequest, screen: tui.TuiOptions) -> int:
    """Open the dashboard on what `request` starts; other workloads may be started from it instead."""
    launcher = LocalLauncher()
    session = JobSession(JobSelector(matches=launcher.owns))
    try:
        plan = launcher.plan(request)
        if plan.fault:
            raise CommandError(plan.fault)
        launcher.start(plan)
        status = dashboard.show(session, replace(screen, launcher=launcher))
        if any(view.ended for view in session.tick().ranks):
            _await(lambda: not launcher.running)
        last = launcher.status()
        if last.phase is LaunchPhase.OVER and last.failed:
            job = launcher.job
            raise CommandError("the job could not be started") if job is None else job_failure(job)
        return status
    finally:
        session.close()
        launcher.close()


def _await(ended: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + END_LIMIT_S
    while not ended() and time.monotonic() < deadline_s:
        time.sleep(0.05)
