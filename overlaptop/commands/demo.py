"""``overlaptop demo``: start a bundled workload, watch it, end it."""

import argparse
import signal
import sys
from contextlib import closing
from dataclasses import replace

from overlaptop import tui
from overlaptop.commands import dashboard
from overlaptop.commands.arguments import add_flag, add_screen, add_value, positive
from overlaptop.commands.output import CommandError, job_failure, print_data, print_message, refusing
from overlaptop.commands.stream import RecordWriter, stream
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.launch.launcher import Launcher, of_workload
from overlaptop.launch.local import LocalLauncher
from overlaptop.launch.request import LaunchError, LaunchPhase, LaunchRequest
from overlaptop.workloads import catalog
from overlaptop.workloads.options import OptionsError

DESCRIPTION = """\
Start a bundled training job under torchrun, watch it, and end it: NCCL on the GPUs that are there, two
ranks on one if there is only one; else gloo on two processes. `python -m overlaptop.workloads` lists
the workloads. What follows -- goes to the workload: overlaptop demo ddp -- --bucket-cap-mb 100;
overlaptop demo ddp -- --help lists its options.
"""
END_LIMIT_S = 15.0  # Longest time from the hub's report that every rank has ended to torchrun's exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "overlaptop demo [WORKLOAD] [--nproc N] [--steps N] [--json] [-- workload options]"
    names = ", ".join(workload.name for workload in catalog.WORKLOADS)
    add_value(parser, "workload", "WORKLOAD", f"{names} (default: ddp)", nargs="?", default="ddp")
    add_value(parser, "--nproc", "N", "processes (default: one a GPU, at least 2)", type=positive)
    add_value(parser, "--steps", "N", "end the job after N steps", type=positive)
    add_flag(parser, "--json", "print records instead of opening the dashboard")
    parser.set_defaults(script_words=[])
    add_screen(parser)


def run(options: argparse.Namespace) -> int:
    workload, words = catalog.find(options.workload), options.script_words
    if workload is None:
        names = ", ".join(each.name for each in catalog.WORKLOADS)
        raise CommandError(f"no workload is called {options.workload!r}; there are: {names}", 2)
    if {"-h", "--help"} & set(words):
        print_data(workload.parser().format_help())
        return 0
    if not options.json:
        dashboard.require_terminal(options.theme)
    with refusing(OptionsError, where=f"{workload.name}: "), refusing(LaunchError, status=1):
        launcher = of_workload(workload, words, options.nproc)
        print_message(f"{workload.name} on {launcher.placement.describe}")
        if options.json:
            with launcher:
                launcher.start()
                return _print_records(launcher, options.steps)
    if options.steps is not None:
        # The job itself stops, and the dashboard keeps showing its last steps.
        words = ["--steps", str(options.steps), *words]
    return _show(LaunchRequest(workload.name, tuple(words), options.nproc), dashboard.screen_of(options))


def _print_records(launcher: Launcher, steps: int | None) -> int:
    with closing(JobSession(JobSelector(matches=launcher.owns))) as session:
        writer = RecordWriter(sys.stdout, steps)
        if stream(session, writer, job_gone=lambda: launcher.poll() is not None, detail=True):
            return 0
    if launcher.wait(END_LIMIT_S):
        raise job_failure(launcher)
    return 0


def _show(request: LaunchRequest, screen: tui.TuiOptions) -> int:
    with (
        closing(LocalLauncher()) as launcher,
        closing(JobSession(JobSelector(matches=launcher.owns), tap=screen.recorder)) as session,
    ):
        plan = launcher.plan(request)
        if plan.fault:
            raise CommandError(plan.fault)
        launcher.start(plan)
        status = dashboard.show(session, replace(screen, launcher=launcher))
        if status not in (0, 128 + signal.SIGINT):
            return status  # a signal ends us, and the job with us
        job = launcher.job
        if job is not None and any(view.ended for view in session.tick().ranks):
            job.wait(END_LIMIT_S)
        last = launcher.status()
        if last.phase is LaunchPhase.OVER and last.failed:
            raise CommandError("the job could not be started") if job is None else job_failure(job)
        return status
