"""``overlaptop set``: change a setting of a running job on all its ranks, without a screen."""

from __future__ import annotations

import sys

from overlaptop.commands import CommandError, say
from overlaptop.commands.following import join_job, send, views
from overlaptop.fleet.commands import FAILED, SENT, CommandView
from overlaptop.fleet.session import JobSession
from overlaptop.tui.text import printable
from overlaptop.wire import commands
from overlaptop.wire.messages import CHANGED, Command


def run(key: str | None, setting: str, value: int) -> int:
    """Set `setting` of the job called `key`, or of the only one, to `value`.

    Progress goes to stderr; stdout gets one line: from what to what, and at which step. Raises CommandError
    when not every rank has changed it.
    """
    try:
        command = commands.make_setting(setting, value)
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    session = join_job(key)
    try:
        send(session, command)
        return follow(session, command)
    finally:
        session.close()


def follow(session: JobSession, command: Command) -> int:
    """Say how far a command that was sent is, and in the end what became of it."""
    told = SENT
    for change in views(session, command):
        if change.state not in (told, FAILED, CHANGED):
            told = change.state
            say(_words(change))
    if change.state == FAILED:
        raise CommandError(f"not changed: {change.reason}")
    for line in sorted({rank.text for rank in change.ranks}):  # one, as all ranks do the same
        print(printable(line))  # noqa: T201
    sys.stdout.flush()
    return 0


def _words(change: CommandView) -> str:
    step = f" on step {change.step}" if change.state == "agreed" else ""
    return f"{change.words}: {change.state}{step}"
