"""What a dashboard on another host starts here, through a relay.

A job outlives the connection over which it was started: its supervisor keeps it, and the relay of a later
connection becomes its owner.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from overlaptop.jobs.record import JobRecord
from overlaptop.launch.local import LocalLauncher
from overlaptop.launch.request import LaunchError, LaunchPhase, LaunchPlan, LaunchRequest
from overlaptop.launch.supervised import Handover, Lease, Takeover
from overlaptop.wire.relaying import MAX_OUTPUT_CHARS, MAX_OUTPUT_LINES, RelayLaunch, RelayLaunchStatus

WITHOUT_OWNER_S = 60.0
"""A job goes on for so long after the last connection of the dashboard that started it has ended."""
_RUNNING_LINES = 40
"""Of the output of a job that runs; of one that failed all that is kept."""
_LOST = "the connection was lost, and it was ended, or not begun"


class RelayedLauncher:
    """Carries out a relay's launch requests (relay.relay.Launches). Each is checked by its plan."""

    def __init__(self, local: LocalLauncher) -> None:
        self._local = local
        self._lock = threading.RLock()
        self._request: RelayLaunch | None = None
        """The newest."""
        self._answer: RelayLaunchStatus | None = None
        """What is reported of it; None: how `_local` is."""
        self._handover: Handover | None = None
        self._takeover: Takeover | None = None
        """Under way: requests wait for what comes of it."""
        self._planner: threading.Thread | None = None

    def take(self, request: RelayLaunch) -> None:
        """As Launches says. One that is sent again, and is here already, changes nothing."""
        with self._lock:
            known = self._request
            if request.again and known is not None and request.number <= known.number:
                return
            self._request = request
            if request.again and known is None:
                self._takeover = Takeover.begin(request.owner)
                if self._takeover is None:
                    self._lose(request)
            elif self._takeover is None:
                self._begin(request)

    def status(self, jobs: Sequence[JobRecord]) -> RelayLaunchStatus | None:
        """As Launches says."""
        with self._lock:
            if self._request is not None and self._takeover is not None:
                self._continue_takeover(self._takeover, self._request)
            request, answer = self._request, self._answer
            if request is None or self._takeover is not None:
                return None
        if answer is not None:
            return answer
        status = self._local.status()
        lines = self._local.output()[-(MAX_OUTPUT_LINES if status.failed else _RUNNING_LINES) :]
        runs = status.phase is LaunchPhase.RUNNING
        return RelayLaunchStatus(
            number=request.number,
            phase=status.phase.name.lower(),
            failed=status.failed,
            how=status.how,
            command_line=status.command_line,
            output=tuple(line[:MAX_OUTPUT_CHARS] for line in lines),
            ending=status.ending,
            job=next((job.job for job in jobs if runs and self._local.owns(job)), ""),
        )

    @property
    def superseded(self) -> bool:
        """As Launches says."""
        if self._local.superseded:
            return True
        # While a job runs, or is about to, its supervisor answers who waits.
        return self._handover is not None and self._handover.waiting and not self.under_way

    @property
    def under_way(self) -> bool:
        """Whether what was requested is not over."""
        return (status := self.status(())) is not None and not status.ended

    def release(self) -> None:
        """Leave what was requested to its supervisor, for WITHOUT_OWNER_S; waits until it has one."""
        if self._planner is not None:
            self._planner.join()
        self._local.release()
        with self._lock:
            if self._takeover is not None:
                self._takeover.close()
            if self._handover is not None:
                self._handover.close(unlink=not self._local.running and not self._local.superseded)

    def _lose(self, request: RelayLaunch) -> None:
        """It was sent again, and there is no job of it."""
        phase, how = ("over", _LOST) if request.words else ("nothing", "")
        self._answer = RelayLaunchStatus(request.number, phase, False, how, "", ())

    def _continue_takeover(self, takeover: Takeover, request: RelayLaunch) -> None:
        if (taken := takeover.poll()) is not None:
            job, self._handover, text = taken
            about = json.loads(text)
            self._takeover = None
            self._local.take_over(job, about["label"], about["command_line"])
            if request.number > about["number"]:
                self._begin(request)
        elif takeover.failed:
            self._takeover = None
            if request.again:
                self._lose(request)
            else:
                self._begin(request)

    def _begin(self, request: RelayLaunch) -> None:
        self._answer = None
        if not request.words:
            self._local.stop()
            return
        ending = self._local.status().ending
        self._answer = RelayLaunchStatus(request.number, "ending", False, "", "", (), ending)
        if self._handover is None and request.owner:
            self._handover = Handover.open(request.owner)
        # A plan may look at the machine for a second. A request that comes meanwhile takes its place.
        self._planner = threading.Thread(
            target=self._carry_out, args=(request,), name="overlaptop-plan", daemon=True
        )
        self._planner.start()

    def _carry_out(self, request: RelayLaunch) -> None:
        plan = None
        try:
            plan = self._local.plan(LaunchRequest(request.words[0], request.words[1:], request.nproc))
            fault = plan.fault
        except Exception as error:  # noqa: BLE001 - on a thread of its own: nobody else would see it
            fault = f"{type(error).__name__}: {error}"
        with self._lock:
            if request is not self._request:
                return
            self._answer = None
            if plan is not None and not fault:
                try:
                    self._local.start(plan, self._lease(request, plan))
                except (LaunchError, ValueError) as error:
                    fault = str(error)
            if fault:
                self._answer = RelayLaunchStatus(request.number, "over", True, fault, "", ())

    def _lease(self, request: RelayLaunch, plan: LaunchPlan) -> Lease | None:
        if self._handover is None:
            return None
        label = plan.request.label
        about = {"number": request.number, "label": label, "command_line": plan.command_line}
        return Lease(WITHOUT_OWNER_S, self._handover, json.dumps(about))
