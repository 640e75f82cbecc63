"""Textual's driver for a terminal that may disappear while the dashboard draws."""

import contextvars
import select
import signal
from collections.abc import Callable
from typing import IO, Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

LOOK_S = 0.5
GONE = 128 + signal.SIGHUP
"""Exit status if the terminal is gone."""


class TerminalDriver(LinuxDriver):
    """Ends the app if its terminal is gone, as SIGHUP does.

     Textual's writing thread ends at the first failed write, and all drawing then waits for it for ever.
    Its reading thread treats the end of input as no input. So failed writes are caught, and while nothing
    is drawn the terminal is checked periodically. On SIGCONT, Textual starts to draw a second time in a
    signal handler, without the app's context. Here the app's loop ends the drawing first, and then restarts
    it.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._file: Any = TerminalFile(self._file, self._leave)
        self._context: contextvars.Context | None = None
        """The app's context, from the first start on."""
        self._drawing = self._stopped = False

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._drawing, self._stopped = True, False
        if self._context is not None:
            return
        self._context = contextvars.copy_context()
        hung_up = select.poll()
        hung_up.register(self.fileno, 0)  # a hang-up is reported for any event mask

        def look() -> None:
            if hung_up.poll(0):
                self._app.exit(None, GONE)

        self._app.set_interval(LOOK_S, look)

    def stop_application_mode(self) -> None:
        self._drawing = False
        super().stop_application_mode()

    def _sigtstp_application(self, *_: object) -> None:
        if self._auto_restart and self._drawing:
            self.suspend_application_mode()
            self._stopped = True
        signal.raise_signal(signal.SIGSTOP)

    def _sigcont_application(self, *_: object) -> None:
        if self._context is not None:
            self._loop.call_soon_threadsafe(self._draw_again, context=self._context)

    def _draw_again(self) -> None:
        if not self._auto_restart or not (self._drawing or self._stopped):
            return  # it is ending, or another program has the terminal
        if self._drawing:
            self.suspend_application_mode()
        self._must_signal_resume = True
        self.resume_application_mode()
        self._app.refresh(layout=True)

    def _leave(self) -> None:
        """Called on the writing thread."""
        self._loop.call_soon_threadsafe(self._app.exit, None, GONE)


class TerminalFile:
    """A terminal's file. The first failed write calls back; later output is dropped."""

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
