"""The work of ``overlaptop set``: what can be changed of a running job, and changing it on all ranks."""

from __future__ import annotations

import time
from contextlib import closing

from overlaptop.console import CommandError, print_data, print_message
from overlaptop.console.following import TICK_S, follow, send, settle
from overlaptop.console.hosts import Hosts, pause
from overlaptop.console.jobs import join
from overlaptop.console.table import Table
from overlaptop.fleet.commands import FAILED
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.report.knobs import allowed_words
from overlaptop.text import UNKNOWN as NOT_KNOWN
from overlaptop.text import printable, with_unit
from overlaptop.wire.commands import CHANGED, UNKNOWN, Command, make_restoring, make_setting

KNOBS_S = 2.0
"""For a job that has just begun to list its knobs, or is being changed."""


def run(key: str | None, name: str, value: int | None, hosts: Hosts | None = None) -> int:
    """Set the knob `name` of the job called `key`, or of the only one, to `value` (None: the script's).

    Progress goes to stderr; stdout gets one line: from what to what, and at which step. Raises CommandError
    when not every rank has changed it, or when that is not known.
    """
    with closing(join(key, hosts)) as session:
        snapshot = _await_knobs(session)
        found = knob_of(snapshot, name)
        try:
            command = make_restoring(found.knob) if value is None else make_setting(found.knob, value)
        except ValueError as error:
            raise CommandError(str(error), 2) from error
        if found.refusal:
            raise CommandError(f"not changed: {found.refusal}")
        if value is not None and _is_surely(value, found, snapshot):
            print_message(f"{name} is {with_unit(found.knob.value_text, found.knob.unit)} already")
            return 0
        send(session, command)
        print_change(session, command)
        return 0


def _is_surely(value: int, found: JobKnob, snapshot: Snapshot) -> bool:
    """Whether all ranks have this value, and nothing that is under way may give them another one."""
    knob = found.knob
    changes = [each for each in snapshot.changes if each.knob == knob.name]
    # A change may go on, or have failed on some ranks only; and they send their knobs a moment after it.
    unsettled = changes and (changes[-1].state != CHANGED or changes[-1].becomes != knob.value_text)
    return (
        value == knob.value
        and not (found.differs or unsettled)
        and all(view.info is not None for view in snapshot.ranks)
        and snapshot.hub_state is HubState.LIVE
    )


def knob_of(snapshot: Snapshot, name: str) -> JobKnob:
    """The knob of that name. CommandError: this job has none."""
    found = snapshot.knob(name)
    if found is None:
        there_is = ", ".join(each.knob.name for each in snapshot.knobs) or "nothing"
        raise CommandError(f"{name} cannot be set; of this job there is: {there_is}", 2)
    return found


def show(key: str | None, hosts: Hosts | None = None, *, as_json: bool) -> int:
    """Print what can be changed of the job called `key`, or of the only one: a table, or a record each."""
    with closing(join(key, hosts)) as session:
        snapshot = _await_knobs(session)
    if as_json:
        for each in snapshot.knobs:
            print_data(_record(session.job_key, each))
    elif snapshot.knobs:
        print_data(_table(snapshot.knobs))
    else:
        print_message("nothing can be changed of this job")
    return 0


def _await_knobs(session: Session) -> Snapshot:
    """The snapshot in which all ranks have the same knobs, or the best that KNOBS_S brings."""
    settle(session)
    give_up_s = time.monotonic() + KNOBS_S
    while True:
        snapshot = session.tick()
        agreed = snapshot.knobs and not any(each.differs for each in snapshot.knobs)
        if agreed or time.monotonic() >= give_up_s:
            return snapshot
        pause(session, TICK_S)


def print_change(session: Session, command: Command) -> None:
    """Follow a change until it is over on all ranks, and print from what to what it was."""
    *_, change = follow(session, command, final=(FAILED, UNKNOWN, CHANGED))
    if change.state == FAILED:
        partly = any(rank.state == CHANGED for rank in change.ranks)
        raise CommandError(change.reason if partly else f"not changed: {change.reason}")
    if change.state == UNKNOWN:
        raise CommandError(f"not known whether it was changed: {change.reason}")
    for line in sorted({rank.text for rank in change.ranks}):  # one, as all ranks do the same
        print_data(printable(line))


def _table(knobs: tuple[JobKnob, ...]) -> str:
    """A row for each knob, and below a line for each that cannot be changed just now."""
    table = Table(
        ["knob", "value", "script", "allowed", "of", "what it does"],
        left={"knob", "allowed", "of", "what it does"},
    )
    for each in knobs:
        knob = each.knob
        value = (knob.value_text or NOT_KNOWN) + (" (ranks differ)" if each.differs else "")
        script = knob.original_text or NOT_KNOWN
        table.add(knob.name, value, script, allowed_words(knob), knob.owner, knob.about)
    refusals = [f"{each.knob.name} cannot be changed now: {each.refusal}" for each in knobs if each.refusal]
    return "\n".join([table.render(), *map(printable, refusals)])


def _record(job: str | None, each: JobKnob) -> dict[str, object]:
    knob = each.knob
    return {
        "type": "knob",
        "job": job,
        "knob": knob.name,
        "value": knob.value,
        "value_text": knob.value_text or None,
        "original_text": knob.original_text or None,
        "least": knob.least,
        "most": knob.most,
        "choices": knob.choices or None,
        "unit": knob.unit or None,
        "owner": knob.owner,
        "about": knob.about,
        "code": knob.code or None,
        "differs": each.differs,
        "refusal": each.refusal or None,
    }
