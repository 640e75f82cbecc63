"""The LocalLauncher: one bundled workload at a time, started from a dashboard, on this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from overlaptop.launch.launcher import JobPlacement, Launcher, LaunchError, of_workload, place
from overlaptop.launch.request import LaunchPhase, LaunchPlan, LaunchRequest, LaunchStatus
from overlaptop.wire.endpoints import JobRecord
from overlaptop.workloads.catalog import WORKLOADS, Workload
from overlaptop.workloads.options import OptionsError

OUTPUT_LINES = 200


class LocalLauncher:
    """A JobLauncher for this machine (see tui.starting), and who ends what it started.

    Ending a job takes up to some seconds: a thread of its own does it, and starts what comes next. Orders
    that come meanwhile replace each other; only the newest is run. Any thread may call any method.
    """

    def __init__(
        self,
        workloads: Sequence[Workload] = WORKLOADS,
        launch: Callable[[Workload, Sequence[str], JobPlacement], Launcher] = of_workload,
    ) -> None:
        """``launch`` makes the launcher of a workload with its options."""
        self.workloads = workloads
        self._launch = launch
        self._lock = threading.Lock()
        self._status = LaunchStatus()
        self._launcher: Launcher | None = None
        """Of the job that runs or ran last; it is replaced when that has ended."""
        self._label = ""
        """Of that job."""
        self._next: Launcher | None = None
        """To be started as soon as nothing is left of the one before."""
        self._worker: threading.Thread | None = None
        self._closed = False

    # A JobLauncher

    @property
    def hosts(self) -> Sequence[str]:
        """Nowhere but here."""
        return ()

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """What would be run for a request, or why it would not."""
        workload = next((each for each in self.workloads if each.name == request.workload), None)
        if workload is None:
            names = ", ".join(each.name for each in self.workloads)
            return LaunchPlan(request, f"no workload is called {request.workload!r}; there are: {names}")
        try:
            given = workload.check(request.options)
            placement = place(request.nproc, str(given.get("device", "auto")))
        except (OptionsError, LaunchError) as fault:
            return LaunchPlan(request, str(fault))
        return LaunchPlan(
            request=request,
            command_line=self._launch(workload, request.options, placement).command_line,
            place=placement.in_words,
            nproc=placement.nproc,
            device_type="cuda" if placement.backend == "nccl" else "cpu",
            given=given,
        )

    def start(self, plan: LaunchPlan) -> None:
        """End the job before and start this one, on a thread. Raises ValueError for a plan with a fault."""
        workload = next((each for each in self.workloads if each.name == plan.request.workload), None)
        if plan.fault or workload is None:
            raise ValueError(plan.fault or f"no workload is called {plan.request.workload!r}")
        placement = place(plan.request.nproc, str(plan.given.get("device", "auto")))
        launcher = self._launch(workload, plan.request.options, placement)
        with self._lock:
            if self._closed:
                return
            self._next = launcher
            self._set(LaunchPhase.ENDING, plan)
            self._wake()

    def stop(self) -> None:
        """End the job, on a thread; one that waits to be started is not."""
        with self._lock:
            if self._next is not None or self._runs():
                self._next = None
                self._set(LaunchPhase.ENDING, None)
                self._wake()

    def status(self) -> LaunchStatus:
        """How the newest request goes."""
        with self._lock:
            status, launcher = self._status, self._launcher
            if status.phase is LaunchPhase.RUNNING and launcher is not None and launcher.poll() is not None:
                status = self._status = replace(
                    status, phase=LaunchPhase.OVER, failed=launcher.poll() != 0, how=launcher.how_it_ended
                )
            return status

    def output(self) -> Sequence[str]:
        """The last lines of the newest job; of a failed one those that say why."""
        with self._lock:
            launcher = self._launcher
        if launcher is None:
            return ()
        return launcher.complaint(OUTPUT_LINES) if launcher.poll() else launcher.output()[-OUTPUT_LINES:]

    def owns(self, record: JobRecord) -> bool:
        """Whether `record` is the job that was started last."""
        with self._lock:
            launcher = self._launcher
        return launcher is not None and launcher.owns(record)

    @property
    def running(self) -> str:
        """Label of the job that ends when the stage is cleared; empty: none."""
        with self._lock:
            return self._label if self._runs() else ""

    # For those who opened it

    @property
    def launcher(self) -> Launcher | None:
        """Of the job that was started last."""
        with self._lock:
            return self._launcher

    def clear(self) -> None:
        """End what was started, wait for its end, and start nothing more."""
        with self._lock:
            self._closed, self._next = True, None
            worker = self._worker
        if worker is not None:
            worker.join()
        if (launcher := self.launcher) is not None:
            launcher.stop()

    # With the lock

    def _runs(self) -> bool:
        return self._launcher is not None and self._launcher.poll() is None

    def _set(self, phase: LaunchPhase, plan: LaunchPlan | None) -> None:
        """A new request, or none."""
        self._status = LaunchStatus(
            phase, self._status.number + 1, plan.request if plan else None,
            plan.command_line if plan else "", self._label if self._runs() else "",
        )  # fmt: skip

    def _wake(self) -> None:
        """Have the worker see to what is to be done."""
        if self._worker is None:
            # A daemon: where this process is killed meanwhile, the supervisors end what is left.
            self._worker = threading.Thread(target=self._work, name="overlaptop-stage", daemon=True)
            self._worker.start()

    # The worker

    def _work(self) -> None:
        """End what runs, then start the newest request, if there is one by then."""
        before = self.launcher
        if before is not None:
            before.stop()
        with self._lock:
            self._worker = None
            launcher, self._next = self._next, None
            status = self._status
            if launcher is None:
                self._status = LaunchStatus(number=status.number)
                return
            self._launcher, self._label = launcher, status.label
            try:
                launcher.start()
            except LaunchError as fault:
                self._status = replace(
                    status, phase=LaunchPhase.OVER, ending="", failed=True, how=str(fault)
                )
            else:
                self._status = replace(status, phase=LaunchPhase.RUNNING, ending="")
