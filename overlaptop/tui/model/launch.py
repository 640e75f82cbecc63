"""Follows the last started job until it is on the screen, and reports how it ended."""

from overlaptop.fleet.session import Session
from overlaptop.launch.local import LocalLauncher
from overlaptop.launch.request import LaunchPhase, LaunchPlan, LaunchStatus
from overlaptop.tui.model.earlier import JobsSeen


class LaunchFollower:
    """The dashboard's side of a launch: the job to show, and what to report. Reads only; never blocks."""

    def __init__(self, launcher: LocalLauncher | None, seen: JobsSeen) -> None:
        self.launcher = launcher
        self.status = LaunchStatus() if launcher is None else launcher.status()
        self.message = ""
        """State of a job that is not on the screen yet, or that never came; empty: neither."""
        self._seen = seen
        self._awaited = self.status.phase is not LaunchPhase.NOTHING
        """True if the job will be shown as soon as it is found."""
        self._job = ""
        self._over = 0
        """Number of the launch whose end was reported."""

    def start(self, plan: LaunchPlan) -> None:
        """Start a job, and show it. Raises ValueError for an invalid plan."""
        if self.launcher is not None:
            self.launcher.start(plan)
            self._awaited = True
            self._take(self.launcher.status())

    def stop_following(self) -> None:
        self._awaited = False

    def poll(self, session: Session) -> str:
        """Poll the launch; return the key of a job to show, once for each start, or nothing."""
        if self.launcher is None:
            return ""
        self._take(self.launcher.status())
        if self.status.phase is LaunchPhase.RUNNING and not self._job:
            for record in session.jobs:
                if self.launcher.owns(record):
                    self._job = record.job
                    self._seen.describe(record.job, self.status.label)
        self.message = self._words()
        turn_to = self._job if self._awaited and self.status.phase is LaunchPhase.RUNNING else ""
        if turn_to:
            self._awaited = False
        return turn_to

    def take_failure(self) -> str:
        """Return the job's failure in one line, once; empty: none."""
        status = self.status
        if status.phase is not LaunchPhase.OVER or self._over == status.number:
            return ""
        self._over = status.number
        self._seen.describe(self._job, status.label, status.how)
        return f"{status.label} ended: {self._reason()}" if status.failed else ""

    def _take(self, status: LaunchStatus) -> None:
        earlier, self.status = self.status, status
        if status.number == earlier.number:
            return
        if earlier.phase is LaunchPhase.RUNNING:
            self._seen.describe(self._job, earlier.label, "ended here")
        self._job = ""

    def _words(self) -> str:
        status = self.status
        if status.phase is LaunchPhase.ENDING and not status.ending:
            return f"starting {status.label}"
        if status.phase is LaunchPhase.ENDING:
            return f"ending {status.ending}" + (f", then {status.label}" if status.request else "")
        if status.phase is LaunchPhase.OVER and status.failed:
            return f"{status.label} ended: {self._reason()}"
        if status.phase is LaunchPhase.RUNNING and not self._job:
            return f"{status.label} is starting: its first step takes some seconds"
        return ""

    def _reason(self) -> str:
        output = self.launcher.output() if self.launcher else ()
        last = next((line for line in reversed(output) if line), "")
        return ", ".join(filter(None, (self.status.how, last)))
