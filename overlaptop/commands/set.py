"""``overlaptop set``: list the knobs of a running job, or change one on all its ranks."""

import argparse
import re
import textwrap
import time

from overlaptop.commands.arguments import add_flag, add_hosts, add_job, add_value, hosts_of
from overlaptop.commands.following import follow, pause, send, settle
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, print_data, print_message, refusing, table
from overlaptop.fleet.commands import FAILED
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.records import KnobRecord, shared
from overlaptop.report.knobs import allowed_words
from overlaptop.text import UNKNOWN as NOT_KNOWN
from overlaptop.text import printable, with_unit
from overlaptop.wire.commands import CHANGED, UNKNOWN, Command, make_restoring, make_setting

DESCRIPTION = """\
Change a setting of a running job, on all its ranks in the same step, or on none. Without NAME=VALUE: list
the settings and their allowed values, and why one cannot be changed now. Bundled workloads accept changes;
start your own job with --control or attach(control=True):

  torchrun --nproc-per-node=8 -m overlaptop.agent --control train.py

NAME=script restores the script's value. One of the settings:
  bucket_cap_mb  MiB a bucket of its DistributedDataParallel model, 1 to 10000. Its buckets are rebuilt
                 between two steps. Gradients stay the same, but for the order of sums with more than two
                 ranks. The model must be the only one, and not compiled
"""
EPILOG = """\
stdout gets a line when all ranks have changed it (bucket_cap_mb 25 → 50 at step 1,234), stderr progress.
overlaptop changes lists all changes: old and new value, and who made them.
overlaptop tune --values measures a value's effect on the step by trials.
exit status: 0 when all ranks have changed it, or had this value already, which is not sent; 1 when none has
and when one failed, 2 for a usage error, 130 after Ctrl-C (the job and a change under way go on).
"""
KNOBS_S = 3.0  # Time limit for knobs of a job that has just begun to list them, or is being changed
LINE_CELLS = 79  # Width of what a knob does: below the table, as it takes a line or two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_value(parser, "change", "NAME=VALUE", "the setting and its new value", type=_change, nargs="?")
    add_job(parser, "the job, as --list names it")
    add_flag(parser, "--json", "without NAME=VALUE: print records, not a table")
    add_hosts(parser)


def run(options: argparse.Namespace) -> int:
    if options.json and options.change is not None:
        raise CommandError("--json goes without NAME=VALUE", 2)
    with join(options.job, hosts_of(options)) as session:
        settle(session)
        snapshot = await_knobs(session)
        if options.change is not None:
            _set(session, snapshot, *options.change)
        elif options.json:
            print_data(*(_record(session.job_key, each) for each in snapshot.knobs))
        elif snapshot.knobs:
            print_data(_table(snapshot.knobs))
        else:
            print_message("nothing can be changed of this job")
    return 0


def _change(text: str) -> tuple[str, int | None]:
    name, _, value = text.partition("=")
    if not (name and re.fullmatch(r"-?[0-9]{1,9}|script", value)):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE with a whole number or script, not {text!r}")
    return name, None if value == "script" else int(value)


def _set(session: Session, snapshot: Snapshot, name: str, value: int | None) -> None:
    """Set a knob, None: to the script's value. CommandError if that failed, or is not known."""
    found = knob_of(snapshot, name)
    with refusing(ValueError):
        command = make_restoring(found.knob) if value is None else make_setting(found.knob, value)
    if found.refusal:
        raise CommandError(f"not changed: {found.refusal}")
    if value is not None and _is_surely(value, found, snapshot):
        print_message(f"{name} is {with_unit(found.knob.value_text, found.knob.unit)} already")
        return
    send(session, command)
    print_change(session, command)


def _is_surely(value: int, found: JobKnob, snapshot: Snapshot) -> bool:
    """Return whether all ranks have this value, and no change in progress may give them another one."""
    knob = found.knob
    changes = [each for each in snapshot.changes if each.knob == knob.name]
    # A change may be in progress, or have failed on some ranks. Ranks send their knobs a moment after it.
    unsettled = changes and (changes[-1].state != CHANGED or changes[-1].new != knob.value_text)
    return (
        value == knob.value
        and not (found.differs or unsettled)
        and all(view.info is not None for view in snapshot.ranks)
        and snapshot.hub_state is HubState.LIVE
    )


def knob_of(snapshot: Snapshot, name: str) -> JobKnob:
    """Return the knob of that name. CommandError: this job has none."""
    found = snapshot.knob(name)
    if found is None:
        there_is = ", ".join(each.knob.name for each in snapshot.knobs) or "nothing"
        raise CommandError(f"{name} cannot be set; of this job there is: {there_is}", 2)
    return found


def await_knobs(session: Session) -> Snapshot:
    """Return the snapshot where all ranks have the same knobs, or the best one within KNOBS_S."""
    give_up_s = time.monotonic() + KNOBS_S
    while True:
        snapshot = session.tick()
        agreed = snapshot.knobs and not any(each.differs for each in snapshot.knobs)
        if agreed or time.monotonic() >= give_up_s:
            return snapshot
        pause(session)


def print_change(session: Session, command: Command) -> None:
    *_, (change, _) = follow(session, command, final=(FAILED, UNKNOWN, CHANGED))
    if change.state == FAILED:
        partly = any(rank.state == CHANGED for rank in change.ranks)
        raise CommandError(change.reason if partly else f"not changed: {change.reason}")
    if change.state == UNKNOWN:
        raise CommandError(f"not known whether it was changed: {change.reason}")
    for line in sorted({rank.text for rank in change.ranks}):  # one, as all ranks do the same
        print_data(printable(line))


def _table(knobs: tuple[JobKnob, ...]) -> str:
    head = ["knob", "value", "script", "allowed", "belongs to"]
    rows = []
    for each in knobs:
        knob = each.knob
        value = (knob.value_text or NOT_KNOWN) + (" (ranks differ)" if each.differs else "")
        script = knob.original_text or NOT_KNOWN
        rows.append([knob.name, value, script, allowed_words(knob), knob.owner])
    uses = [f"{each.knob.name}: {each.knob.about}" for each in knobs if each.knob.about]
    refusals = [f"{each.knob.name} cannot be changed now: {each.refusal}" for each in knobs if each.refusal]
    lines = [textwrap.fill(printable(line), LINE_CELLS, subsequent_indent="  ") for line in uses]
    listed = table(head, rows, left={"knob", "allowed", "belongs to"})
    return "\n".join([listed, *lines, *map(printable, refusals)])


def _record(job: str | None, each: JobKnob) -> KnobRecord:
    fields = {**shared(KnobRecord, each.knob), **shared(KnobRecord, each)}
    for name in ("value_text", "original_text", "choices", "unit", "code", "refusal"):
        fields[name] = fields[name] or None
    return KnobRecord(**{**fields, "job": job, "knob": each.knob.name})
