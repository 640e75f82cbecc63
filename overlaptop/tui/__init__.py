"""Snapshot -> screen. Importing this package imports no Textual; running the dashboard does."""

from __future__ import annotations

from overlaptop.tui.options import Session, TuiOptions

__all__ = ["Session", "TuiOptions", "run"]


def run(session: Session, options: TuiOptions | None = None) -> int:
    """Show ``session`` until the user leaves; gives the exit status. Does not close the session."""
    from overlaptop.tui.app import OverlaptopApp

    app = OverlaptopApp(session, options)
    app.run()
    return app.return_code or 0
