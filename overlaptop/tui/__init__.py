"""Snapshot -> screen. Importing this package imports no Textual; running the dashboard does."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from overlaptop.fleet.session import Session
from overlaptop.tui.model.options import TuiOptions

__all__ = ["TuiOptions", "run"]


def run(session: Session, options: TuiOptions | None = None, ending_signals: Collection[int] = ()) -> int:
    """Show ``session`` until the user leaves; gives the exit status. Does not close the session.

    One of ``ending_signals`` ends it like the user, with status 128 + its number. They are the event loop's
    while the dashboard runs: an exception that a signal handler raises is lost where it strikes in a
    finalizer. Afterwards they have their default action.
    """
    from overlaptop.tui.app import OverlaptopApp
    from overlaptop.tui.terminal_driver import TerminalDriver

    app = OverlaptopApp(session, options)
    app.driver_class = TerminalDriver

    async def run_app() -> None:
        loop = asyncio.get_running_loop()
        for number in ending_signals:
            loop.add_signal_handler(number, app.exit, None, 128 + number)
        await app.run_async()

    asyncio.run(run_app())
    return app.return_code or 0
