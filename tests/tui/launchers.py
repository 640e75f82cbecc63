"""A launcher without processes: a test decides what becomes of each request."""

from dataclasses import replace

from overlaptop.launch.request import LaunchPhase, LaunchPlan, LaunchRequest, LaunchStatus
from overlaptop.workloads.catalog import WORKLOADS
from overlaptop.workloads.options import OptionsError
from tests.fleet.fakes import record


class FakeLauncher:
    """Plans as a machine with two free CPUs and no GPU would."""

    def __init__(self, workloads=WORKLOADS):
        self.workloads = workloads
        self.now = LaunchStatus()
        self.lines = []
        self.owned = set()  # Keys of the jobs that were started here
        self.running = ""
        self.requests = []
        self.stops = 0

    def plan(self, order):
        workload = next(each for each in self.workloads if each.name == order.workload)
        try:
            given = workload.check(order.options)
        except OptionsError as fault:
            return LaunchPlan(order, str(fault))
        nproc = order.nproc or 2
        words = " ".join((f"torchrun --nproc-per-node={nproc} {workload.name}.py", *order.options))
        return LaunchPlan(order, "", words, f"the CPU, {nproc} processes, gloo", nproc, "cpu", given)

    def start(self, plan):
        assert not plan.fault
        self.requests.append(plan.request)
        self.now = LaunchStatus(LaunchPhase.ENDING, self.now.number + 1, plan.request, self.running)

    def comes_up(self, job=""):
        """The job before has ended, and this one runs; where `job` is named, it has a hub."""
        self.running = self.now.label
        self.owned = {job} if job else set()
        self.now = replace(self.now, phase=LaunchPhase.RUNNING, ending="")

    def fails(self, how, *lines):
        self.running, self.lines = "", list(lines)
        self.now = replace(self.now, phase=LaunchPhase.OVER, ending="", failed=True, how=how)

    def stop(self):
        self.stops += 1

    def status(self):
        return self.now

    def output(self):
        return self.lines

    def owns(self, record):
        return record.job in self.owned


def started_here(session, *options):
    """The launcher that has started the job of this session: ddp, with these options."""
    launcher = FakeLauncher()
    launcher.start(launcher.plan(LaunchRequest("ddp", options)))
    launcher.comes_up("job-1")
    session.jobs = (record("job-1", script="ddp.py"),)
    return launcher
