"""``overlaptop set``: change a setting of a running job on all its ranks, without a screen."""

from __future__ import annotations

import sys
import time

from overlaptop.commands import CommandError, say
from overlaptop.commands.following import TICK_S, join_job, send, views
from overlaptop.commands.once import settle
from overlaptop.fleet.commands import FAILED, SENT, CommandView
from overlaptop.fleet.session import JobSession
from overlaptop.tui.text import printable
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob
from overlaptop.wire.messages import CHANGED, Command

KNOBS_S = 2.0
"""For a job that has just begun to say what can be changed of it."""


def run(key: str | None, setting: str, value: int) -> int:
    """Set `setting` of the job called `key`, or of the only one, to `value`.

    Progress goes to stderr; stdout gets one line: from what to what, and at which step. Raises CommandError
    when not every rank has changed it.
    """
    session = join_job(key)
    try:
        knob = find_knob(session, setting)
        try:
            command = commands.make_setting(knob, value)
        except ValueError as error:
            raise CommandError(str(error), 2) from error
        send(session, command)
        return follow(session, command)
    finally:
        session.close()


def find_knob(session: JobSession, name: str) -> Knob:
    """What the job says of this knob. CommandError, status 2, where it has none of that name."""
    settle(session)
    give_up_s = time.monotonic() + KNOBS_S
    while not (known := session.tick().knobs) and time.monotonic() < give_up_s:
        time.sleep(TICK_S)
    found = next((each.knob for each in known if each.knob.name == name), None)
    if found is None:
        there_is = ", ".join(each.knob.name for each in known) or "nothing"
        raise CommandError(f"{name} cannot be set; of this job there is: {there_is}", 2)
    return found


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
