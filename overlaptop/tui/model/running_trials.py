"""Trials of this dashboard: of a knob's values, or of delays of its ranks. No screen."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.report.knobs import present_words
from overlaptop.text import duration, plural
from overlaptop.tui.model.knob_editor import ValueRefusedError
from overlaptop.wire.commands import CHANGED, HOST, PLACES
from overlaptop.wire.knobs import Knob

if TYPE_CHECKING:
    from overlaptop.trials.effect import Effect
    from overlaptop.trials.runner import Trials
    from overlaptop.trials.settings import Best

# numpy takes 100 ms to import: the trials' modules are imported only on use.


@dataclass(frozen=True, slots=True)
class RunningTrials:
    """Trials, running or over."""

    trials: "Trials"
    title: str
    knob: Knob | None  # The knob tried; None: ranks are delayed
    job: str

    @property
    def best(self) -> "Best | None":
        """Return the result so far; None for delays, or if nothing is known."""
        from overlaptop.trials.settings import best_of

        return best_of(self.knob, self.trials.state) if self.knob is not None else None


class DashboardTrials:
    """Starts, follows and stops trials, one after the other."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.newest: RunningTrials | None = None
        self._slack: RunningTrials | None = None

    @property
    def running(self) -> bool:
        return self.newest is not None and not self.newest.trials.over

    def tick(self, snapshot: Snapshot) -> None:
        if self.newest is not None:
            self.newest.trials.tick(snapshot)

    def stop(self, why: str = "stopped") -> None:
        """Start no more trials; the current one ends by itself."""
        if self.newest is not None:
            self.newest.trials.stop(why)

    def try_values(self, snapshot: Snapshot, name: str, words: str) -> None:
        """Start trials of a knob's typed values. Raises ValueRefusedError, whose text is for the prompt."""
        from overlaptop.trials.settings import try_values

        if (held := snapshot.knob(name)) is None:
            raise ValueRefusedError(f"the job has no {name} any more")
        try:
            values = [int(word) for word in words.split(",")]
        except ValueError:
            raise ValueRefusedError("type whole numbers with commas between them") from None
        try:
            trials = try_values(self._session, held, values)
        except ValueError as error:
            raise ValueRefusedError(str(error)) from error
        title = f"trials of {name} against {present_words(held.knob)}"
        self.newest = RunningTrials(trials, title, held.knob, _job_of(snapshot))

    def try_value_before(self, snapshot: Snapshot) -> None:
        """Try the value before the newest change. Raises ValueRefusedError."""
        changes = [each for each in snapshot.changes if each.state == CHANGED]
        if not changes or changes[-1].old == changes[-1].new:
            raise ValueRefusedError("nothing was changed: there is no value before to try")
        old = changes[-1].old
        if not old.removeprefix("-").isdecimal():
            raise ValueRefusedError(f"{old or 'the earlier value'} is no whole number: it cannot be tried")
        self.try_values(snapshot, changes[-1].knob, old)

    def delays(self, snapshot: Snapshot) -> tuple[RunningTrials, str]:
        """Return trials that delay each rank in turn, and a question. Raises ValueRefusedError."""
        from overlaptop.trials.slack import cost_words, delay_ranks, refusal, usual_delay_ns

        step_ns, ranks = snapshot.totals.step_ns, [view.rank for view in snapshot.ranks]
        if why := refusal(snapshot):
            raise ValueRefusedError(why)
        if not step_ns:
            raise ValueRefusedError("no step has been measured yet")
        delay_ns = usual_delay_ns(snapshot)
        try:
            trials = delay_ranks(self._session, ranks, delay_ns, HOST)
        except ValueError as error:
            raise ValueRefusedError(str(error)) from error
        title = f"slack: the {PLACES[HOST]} of each rank in turn is late by {duration(delay_ns)}"
        question = (
            f"delay {plural(len(ranks), 'rank')} in turn by {duration(delay_ns)} a step? "
            f"{cost_words(len(ranks), delay_ns, step_ns)}"
        )
        return RunningTrials(trials, title, None, _job_of(snapshot)), question

    def begin_delays(self, trials: RunningTrials) -> None:
        self.newest = self._slack = trials

    def slopes(self, job: str | None) -> "dict[int, Effect]":
        """Return the measured slack effect by rank, if it was measured in this job."""
        if self._slack is None or self._slack.job != job:
            return {}
        from overlaptop.trials.slack import NOT_KNOWN, verdict

        tried = self._slack.trials.state.tried
        return {
            each.candidate.key: each.effect for each in tried if each.effect and verdict(each) != NOT_KNOWN
        }

    def best(self, job: str | None) -> tuple[str, int] | None:
        """Return the knob and the best value of this job's finished trials; None: the present one."""
        newest = self.newest
        if newest is None or newest.knob is None or self.running or newest.job != job:
            return None
        found = newest.best
        return (newest.knob.name, found.value) if found is not None and found.value is not None else None


def usual_values(knob: Knob, snapshot: Snapshot) -> str:
    """Return the values to try by default, such as ``6,12,50,100``."""
    from overlaptop.trials.values import layout_of, values_to_try

    try:
        return ",".join(map(str, values_to_try(knob, layout=layout_of(knob, snapshot))))
    except ValueError:
        return ""


def _job_of(snapshot: Snapshot) -> str:
    return snapshot.job.job if snapshot.job is not None else ""
