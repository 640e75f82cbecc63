"""Snapshot -> screen. Importing this package does not import Textual; running the dashboard does."""

import asyncio
import gc
import signal
from collections.abc import Collection

from overlaptop.fleet.session import Session
from overlaptop.tui.model.options import TuiOptions

__all__ = ["TuiOptions", "run"]


def run(session: Session, options: TuiOptions | None = None, ending_signals: Collection[int] = ()) -> int:
    """Show ``session`` until the user leaves; return the exit status. Does not close the session.

    SIGINT and each of ``ending_signals`` end it as the user would, with status 128 + their number. The
    event loop handles them while the dashboard runs: an exception raised in a signal handler is lost if it
    strikes in a finalizer. Afterwards they have their default action.
    """
    from overlaptop.tui.app import OverlaptopApp
    from overlaptop.tui.terminal_driver import TerminalDriver

    gc.freeze()  # modules stay
    gc.set_threshold(10_000)  # a drawing makes thousands of objects, and leaves few

    app = OverlaptopApp(session, options)
    app.driver_class = TerminalDriver

    async def run_app() -> None:
        loop = asyncio.get_running_loop()
        for number in (*ending_signals, signal.SIGINT):
            loop.add_signal_handler(number, app.exit, None, 128 + number)
        await app.run_async()

    asyncio.run(run_app())
    return app.return_code or 0
