"""Textual's driver for a terminal that may disappear, or whose program is stopped and continued."""

import signal
from contextlib import suppress
from typing import IO, Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """Lets the app end after its terminal, and draw again in its own loop after a stop.

    Textual's writing thread ends at the first failed write, and the app then waits for it for ever. On
    SIGCONT, Textual starts to draw a second time, in a signal handler.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._file: Any = TerminalFile(self._file)

    def _sigtstp_application(self, *_: object) -> None:
        signal.raise_signal(signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        self._app.call_later(self._draw_again)

    def _draw_again(self) -> None:
        self.suspend_application_mode()
        self.resume_application_mode()
        self._app.refresh(layout=True)


class TerminalFile:
    """A terminal's file that drops what cannot be written. SIGHUP says that the terminal is gone."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()
