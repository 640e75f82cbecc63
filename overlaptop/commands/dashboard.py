"""The dashboard: ``overlaptop`` without options, and what ``demo`` opens on its job."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from types import FrameType
from typing import NoReturn

from overlaptop import tui
from overlaptop.commands import CommandError
from overlaptop.fleet.session import JobSelector, JobSession
from overlaptop.launcher import Launcher, LaunchError, bundled


def run(key: str | None, look: tui.TuiOptions) -> int:
    """Open the dashboard on the job called `key`, on the only one, or on a list to choose from.

    Workloads that are started from it end with it.
    """
    require_screen(look)
    session = JobSession(JobSelector(key=key))
    stage = Stage(session)
    try:
        look = replace(
            look, start_workload=stage.start, launch_status=stage.status, ends_on_quit=stage.running
        )
        return show(session, look)
    finally:
        session.close()
        stage.clear()


def show(session: tui.Session, look: tui.TuiOptions) -> int:
    """Run the dashboard; give the terminal back also when a signal ends us.

    After SIGHUP there may be no terminal, and after SIGTERM the shell still needs its own.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _leave)
    return tui.run(session, look)


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)


def require_screen(look: tui.TuiOptions) -> None:
    """CommandError where there is no screen to draw on, or no such theme to draw with."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("the dashboard needs a terminal; without one, use --json or --once", 2)
    if not sys.stderr.isatty():
        # Textual draws there. Told on stdout as well: the person does not see the other one.
        fault = "the dashboard draws on stderr, which is no terminal here: start it without 2>"
        print(f"overlaptop: {fault}", flush=True)  # noqa: T201
        raise CommandError(fault, 2)
    if look.theme is not None:
        from overlaptop.tui.palette import PALETTES

        if look.theme not in PALETTES:
            raise CommandError(f"no theme {look.theme!r}; there are: {', '.join(PALETTES)}", 2)


class Stage:
    """The one workload that was started from the dashboard."""

    def __init__(self, session: JobSession) -> None:
        self._session = session
        self._launcher: Launcher | None = None
        self._name = ""

    def start(self, name: str) -> None:
        """Start the bundled workload `name` in place of the one before. Raises ValueError."""
        self.clear()
        try:
            launcher = bundled(name)
            launcher.start()
        except LaunchError as fault:
            raise ValueError(str(fault)) from fault
        self._launcher, self._name = launcher, name

    def status(self) -> str:
        """Say how the start goes; turn the session to the job once it is there."""
        if self._launcher is None:
            return ""
        if self._launcher.poll() is not None:
            return f"{self._name} ended: " + (self._launcher.complaint() or ["it said nothing"])[-1]
        for record in self._session.jobs:
            if self._launcher.owns(record):
                self._session.select(record.job)
                return ""
        return f"{self._name} is starting"

    def running(self) -> str:
        """Name the workload that ends when the stage is cleared; empty: none."""
        running = self._launcher is not None and self._launcher.poll() is None
        return self._name if running else ""

    def clear(self) -> None:
        """End the workload, if there is one."""
        if self._launcher is not None:
            self._launcher.stop()
            self._launcher = None
