"""LocalLauncher: runs one bundled workload at a time on this machine, started from a dashboard."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from overlaptop.jobs.record import JobRecord
from overlaptop.launch.launcher import Launcher, of_workload
from overlaptop.launch.request import LaunchError, LaunchPhase, LaunchPlan, LaunchRequest, LaunchStatus
from overlaptop.workloads.catalog import WORKLOADS, Workload
from overlaptop.workloads.options import OptionsError

OUTPUT_LINES = 200


class LocalLauncher:
    """Starts a job in place of its previous one, and never touches any other job.

    Ending a job takes up to several seconds, and nothing here but ``close`` waits for it: once the previous
    job has ended, ``status`` starts the next one. Requests during that time replace each other, and only
    the newest runs.
    """

    def __init__(
        self,
        workloads: Sequence[Workload] = WORKLOADS,
        launch: Callable[[Workload, Sequence[str], int | None], Launcher] = of_workload,
    ) -> None:
        """``launch``: makes the launcher of a workload with its options."""
        self.workloads = workloads
        self._launch = launch
        self._status = LaunchStatus()
        self.job: Launcher | None = None  # The job that runs or ran last. Replaced only after it has ended.
        self._label = ""
        self._next: Launcher | None = None  # Plan to start as soon as the previous job has ended completely

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Return the command for a request, or why it cannot run. May inspect the machine for a second. Any
        thread may call it.
        """
        try:
            launcher, given = self._prepare(request)
        except LaunchError as fault:
            return LaunchPlan(request, str(fault))
        on = launcher.placement
        return LaunchPlan(request, "", launcher.command_line, on.describe, on.nproc, on.defaults, given)

    def start(self, plan: LaunchPlan) -> None:
        """End the previous job, and start this one after it. Raises ValueError for a plan with a fault, and
        then ends nothing.
        """
        if plan.fault:
            raise ValueError(plan.fault)
        self._next, _ = self._prepare(plan.request)
        self._end(plan.request)

    def stop(self) -> None:
        if self._next is not None or self.running:
            self._next = None
            self._end(None)

    def status(self) -> LaunchStatus:
        """Return the progress of the newest request; start its job if the previous one has ended."""
        status, job = self._status, self.job
        if status.phase is LaunchPhase.ENDING and not self.running:
            self._start_next()
        elif status.phase is LaunchPhase.RUNNING and job is not None and not self.running:
            how, failed = job.how_it_ended, job.poll() != 0
            self._status = replace(status, phase=LaunchPhase.OVER, failed=failed, how=how)
        return self._status

    def output(self) -> Sequence[str]:
        """Return the last lines of the newest job. If it failed, the lines with the reason."""
        if (job := self.job) is None:
            return ()
        return job.complaint(OUTPUT_LINES) if job.poll() else job.output()[-OUTPUT_LINES:]

    def owns(self, record: JobRecord) -> bool:
        return self.job is not None and self.job.owns(record)

    @property
    def running(self) -> str:
        """Label of the job that ends when this is closed. Empty if there is none."""
        return self._label if self.job is not None and self.job.poll() is None else ""

    def close(self) -> None:
        """End the started job, wait for its end, and start no other."""
        self.stop()
        if self.job is not None:
            self.job.stop()

    def _prepare(self, request: LaunchRequest) -> tuple[Launcher, Mapping[str, object]]:
        workload = next((each for each in self.workloads if each.name == request.workload), None)
        if workload is None:
            names = ", ".join(each.name for each in self.workloads)
            raise LaunchError(f"no workload is called {request.workload!r}; there are: {names}")
        try:
            given = workload.check(request.options)
            return self._launch(workload, request.options, request.nproc), given
        except OptionsError as fault:
            raise LaunchError(str(fault)) from fault

    def _end(self, request: LaunchRequest | None) -> None:
        """Set a new request, or none, and have the running job ended first."""
        self._status = LaunchStatus(LaunchPhase.ENDING, self._status.number + 1, request, self.running)
        if self.job is not None:
            self.job.end()
        self.status()

    def _start_next(self) -> None:
        launcher, self._next = self._next, None
        status = replace(self._status, ending="")
        if launcher is None:
            self._status = LaunchStatus(number=status.number)
            return
        self.job = None
        try:
            launcher.start()
        except LaunchError as fault:
            self._status = replace(status, phase=LaunchPhase.OVER, failed=True, how=str(fault))
        else:
            self.job, self._label = launcher, status.label
            self._status = replace(status, phase=LaunchPhase.RUNNING)
