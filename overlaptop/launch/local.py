"""LocalLauncher: runs one bundled workload at a time on this machine, started from a dashboard."""

import threading
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

    Ending a job takes up to several seconds, so a thread ends it and starts the next one. Requests during
    that time replace each other, and only the newest runs. Any thread may call any method.
    """

    def __init__(
        self,
        workloads: Sequence[Workload] = WORKLOADS,
        launch: Callable[[Workload, Sequence[str], int | None], Launcher] = of_workload,
    ) -> None:
        """``launch``: makes the launcher of a workload with its options."""
        self.workloads = workloads
        self._launch = launch
        self._lock = threading.Lock()
        self._status = LaunchStatus()
        self.job: Launcher | None = None  # The job that runs or ran last. Replaced only after it has ended.
        self._label = ""
        self._next: Launcher | None = None  # Plan to start as soon as the previous job has ended completely
        self._worker: threading.Thread | None = None
        self._closed = False

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Return the command for a request, or why it cannot run. May inspect the machine for a second."""
        try:
            launcher, given = self._prepare(request)
        except LaunchError as fault:
            return LaunchPlan(request, str(fault))
        on = launcher.placement
        return LaunchPlan(request, "", launcher.command_line, on.describe, on.nproc, on.defaults, given)

    def start(self, plan: LaunchPlan) -> None:
        """End the previous job and start this one, on a thread. Raises ValueError for a plan with a fault,
        and then ends nothing.
        """
        if plan.fault:
            raise ValueError(plan.fault)
        launcher, _ = self._prepare(plan.request)
        with self._lock:
            if self._closed:
                return
            self._next = launcher
            self._set_ending(plan)

    def stop(self) -> None:
        with self._lock:
            if self._next is not None or self._runs():
                self._next = None
                self._set_ending(None)

    def status(self) -> LaunchStatus:
        with self._lock:
            status, job = self._status, self.job
            if status.phase is LaunchPhase.RUNNING and job is not None and job.poll() is not None:
                status = self._status = replace(
                    status, phase=LaunchPhase.OVER, failed=job.poll() != 0, how=job.how_it_ended
                )
            return status

    def output(self) -> Sequence[str]:
        """Return the last lines of the newest job. If it failed, the lines with the reason."""
        if (job := self.job) is None:
            return ()
        return job.complaint(OUTPUT_LINES) if job.poll() else job.output()[-OUTPUT_LINES:]

    def owns(self, record: JobRecord) -> bool:
        return (job := self.job) is not None and job.owns(record)

    @property
    def running(self) -> str:
        """Label of the job that ends when this is closed. Empty if there is none."""
        with self._lock:
            return self._label if self._runs() else ""

    def close(self) -> None:
        """End the started job, wait for its end, and start no other."""
        with self._lock:
            self._closed, self._next = True, None
            worker = self._worker
        if worker is not None:
            worker.join()
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

    # With the lock

    def _runs(self) -> bool:
        return self.job is not None and self.job.poll() is None

    def _set_ending(self, plan: LaunchPlan | None) -> None:
        """Set a new request, or none, and have the worker end the running job first."""
        request, ending = plan.request if plan else None, self._label if self._runs() else ""
        self._status = LaunchStatus(LaunchPhase.ENDING, self._status.number + 1, request, ending)
        if self._worker is None:
            # A daemon thread: if this process is killed meanwhile, the supervisors end the jobs.
            self._worker = threading.Thread(target=self._work, name="overlaptop-launch", daemon=True)
            self._worker.start()

    # The worker

    def _work(self) -> None:
        """End the running job, then start the last request, if there is one by then."""
        if (before := self.job) is not None:
            before.stop()
        with self._lock:
            self._worker = None
            launcher, self._next = self._next, None
            status = self._status
            if launcher is None:
                self._status = LaunchStatus(number=status.number)
                return
            self.job = None
            try:
                launcher.start()
            except LaunchError as fault:
                self._status = replace(
                    status, phase=LaunchPhase.OVER, ending="", failed=True, how=str(fault)
                )
            else:
                self.job, self._label = launcher, status.label
                self._status = replace(status, phase=LaunchPhase.RUNNING, ending="")
