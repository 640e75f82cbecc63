"""Follows the last started job until it is on the screen, and reports how it ended."""

from overlaptop.fleet.session import Session
from overlaptop.launch.local import LocalLauncher
from overlaptop.launch.request import LaunchPhase, LaunchPlan, LaunchStatus
from overlaptop.tui.model.earlier import JobsSeen


class LaunchFollower:
    """The dashboard's side of a launch: the job to show, and what to report. Reads only; never blocks."""

    def __init__(self, launcher: LocalLauncher | None, seen: JobsSeen) -> None:
        self._launcher, self._seen = launcher, seen
        self.status = LaunchStatus() if launcher is None else launcher.status()
        self.awaited = self.status.phase is not LaunchPhase.NOTHING
        """True if the job will be shown as soon as it is found."""
        self._job = ""
        self._over = 0  # Number of the launch whose end was reported

    def start(self, plan: LaunchPlan) -> None:
        """Start a job, and show it. Raises ValueError for an invalid plan."""
        if self._launcher is not None:
            self._launcher.start(plan)
            self.awaited = True
            self._take(self._launcher.status())

    def poll(self, session: Session) -> str:
        """Poll the launch; return the key of a job to show, once for each start, or nothing."""
        if self._launcher is None:
            return ""
        self._take(self._launcher.status())
        if self.status.phase is not LaunchPhase.RUNNING:
            return ""
        if not self._job and (own := next(filter(self._launcher.owns, session.jobs), None)) is not None:
            self._job = own.job
            self._seen.describe(self._job, self.status.label)
        if not (self.awaited and self._job):
            return ""
        self.awaited = False
        return self._job

    def take_failure(self) -> str:
        """Return the job's failure in one line, once; empty: none."""
        status = self.status
        if status.phase is not LaunchPhase.OVER or self._over == status.number:
            return ""
        self._over = status.number
        self._seen.describe(self._job, status.label, status.how)
        return self.message

    @property
    def message(self) -> str:
        """Return the state of a job that is not on the screen yet, or that never came; empty: neither."""
        status = self.status
        if status.phase is LaunchPhase.ENDING and not status.ending:
            return f"starting {status.label}"
        if status.phase is LaunchPhase.ENDING:
            return f"ending {status.ending}" + (f", then {status.label}" if status.request else "")
        if status.phase is LaunchPhase.OVER and status.failed:
            output = self._launcher.output() if self._launcher else ()
            last = next((line for line in reversed(output) if line), "")
            return f"{status.label} ended: {', '.join(filter(None, (status.how, last)))}"
        if status.phase is LaunchPhase.RUNNING and not self._job:
            return f"{status.label} is starting: its first step takes some seconds"
        return ""

    def _take(self, status: LaunchStatus) -> None:
        earlier, self.status = self.status, status
        if status.number != earlier.number:
            if earlier.phase is LaunchPhase.RUNNING:
                self._seen.describe(self._job, earlier.label, "ended here")
            self._job = ""
