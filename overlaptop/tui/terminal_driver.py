"""Textual's driver for a terminal that may go away while the dashboard draws."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable
from typing import IO, Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

LOOK_S = 0.5
GONE = 128 + signal.SIGHUP
"""The exit status then."""


class TerminalDriver(LinuxDriver):
    """Ends the app where its terminal is gone, as SIGHUP does.

    Textual's writing thread ends at the first failed write, and all that draws then waits for it for ever.
    Its reading thread takes the end of input for nothing to read. So writes that fail are caught, and where
    nothing is drawn the terminal is looked at now and then.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._file: Any = TerminalFile(self._file, self._leave)

    def start_application_mode(self) -> None:
        """Begin to draw, and to look whether the terminal is there."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        hung_up = select.poll()
        hung_up.register(self.fileno, 0)  # a hang-up is reported whatever is asked for

        def look() -> None:
            if hung_up.poll(0):
                self._app.exit(None, GONE)

        self._app.set_interval(LOOK_S, look)

    def _leave(self) -> None:
        """Called on the writing thread."""
        self._loop.call_soon_threadsafe(self._app.exit, None, GONE)


class TerminalFile:
    """A terminal's file. The first write that fails calls back; what comes later is dropped."""

    def __init__(self, file: IO[str], on_gone: Callable[[], object]) -> None:
        self._file = file
        self._on_gone = on_gone
        self._gone = False

    def write(self, text: str) -> None:
        self._attempt(lambda: self._file.write(text))

    def flush(self) -> None:
        self._attempt(self._file.flush)

    def fileno(self) -> int:
        return self._file.fileno()

    def _attempt(self, act: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            act()
        except OSError:
            self._gone = True
            self._on_gone()
