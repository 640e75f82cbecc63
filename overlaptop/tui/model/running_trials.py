"""Trials of this dashboard: of a knob's values, or of delays of its ranks. No screen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.report.knobs import present_words
from overlaptop.text import duration, plural
from overlaptop.tui.model.knob_values import ValueRefusedError
from overlaptop.wire.commands import CHANGED, HOST, PLACES
from overlaptop.wire.knobs import Knob

if TYPE_CHECKING:
    from overlaptop.trials.runner import Trials, TrialsState

# numpy takes 100 ms to import: the trials' modules are imported only on use.


@dataclass(frozen=True, slots=True)
class RunningTrials:
    """Trials, running or over."""

    trials: Trials
    title: str
    knob: Knob | None
    """The knob tried; None: ranks are delayed."""
    job: str
    """The job's key."""
    script: str

    @property
    def state(self) -> TrialsState:
        return self.trials.state


def usual_values(knob: Knob, snapshot: Snapshot) -> str:
    """Return the values to try by default: ``6,12,50,100``; empty: there are none."""
    from overlaptop.trials.values import layout_of, values_to_try

    try:
        return ",".join(map(str, values_to_try(knob, layout=layout_of(knob, snapshot))))
    except ValueError:
        return ""


def try_typed(session: Session, snapshot: Snapshot, name: str, words: str) -> RunningTrials:
    """Start trials of typed values. Raises ValueRefusedError, whose text is for the prompt."""
    from overlaptop.trials.settings import try_values

    held = snapshot.knob(name)
    if held is None:
        raise ValueRefusedError(f"the job has no {name} any more")
    try:
        values = [int(word) for word in words.split(",")]
    except ValueError:
        raise ValueRefusedError("type whole numbers with commas between them") from None
    try:
        trials = try_values(session, held, values)
    except ValueError as error:
        raise ValueRefusedError(str(error)) from error
    title = f"trials of {name} against {present_words(held.knob)}"
    return RunningTrials(trials, title, held.knob, *_job_of(snapshot))


def try_value_before(session: Session, snapshot: Snapshot) -> RunningTrials:
    """Start a trial of the value before the newest change. Raises ValueRefusedError."""
    changes = [each for each in snapshot.changes if each.state == CHANGED]
    if not changes or changes[-1].old == changes[-1].new:
        raise ValueRefusedError("nothing was changed: there is no value before to try")
    if not changes[-1].old.removeprefix("-").isdecimal():
        raise ValueRefusedError(
            f"{changes[-1].old or 'what it was'} is no whole number: it cannot be tried"
        )
    return try_typed(session, snapshot, changes[-1].knob, changes[-1].old)


def try_delays(session: Session, snapshot: Snapshot) -> tuple[RunningTrials, str]:
    """Return trials that delay each rank in turn from their first tick on, and a question with their cost.
    Raises ValueRefusedError.
    """
    from overlaptop.trials.slack import delay_ranks, least_cost_ns, refusal, usual_delay_ns

    step_ns, ranks = snapshot.totals.step_ns, [view.rank for view in snapshot.ranks]
    if why := refusal(snapshot):
        raise ValueRefusedError(why)
    if not step_ns:
        raise ValueRefusedError("no step has been measured yet")
    delay_ns = usual_delay_ns(snapshot)
    try:
        trials = delay_ranks(session, ranks, delay_ns, HOST)
    except ValueError as error:
        raise ValueRefusedError(str(error)) from error
    title = f"slack: the {PLACES[HOST]} of each rank in turn is late by {duration(delay_ns)}"
    question = (
        f"delay {plural(len(ranks), 'rank')} in turn by {duration(delay_ns)} a step? "
        f"costs the job {duration(least_cost_ns(len(ranks), delay_ns, step_ns))} or more"
    )
    return RunningTrials(trials, title, None, *_job_of(snapshot)), question


def _job_of(snapshot: Snapshot) -> tuple[str, str]:
    return (snapshot.job.job, PurePath(snapshot.job.script).name) if snapshot.job is not None else ("", "")
