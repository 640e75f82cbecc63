"""Changes that this dashboard makes to the job: knobs by keys, and trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs import change_log
from overlaptop.jobs.folder import JobFolderError
from overlaptop.tui.model import running_trials
from overlaptop.tui.model.knob_editor import KnobChange, KnobEditor
from overlaptop.tui.model.knob_values import ValueRefusedError
from overlaptop.tui.model.running_trials import RunningTrials

if TYPE_CHECKING:
    from overlaptop.trials.effect import Effect

NEWS_S = 8.0
"""Time that a completed change stays on the screen."""
BY_HAND = "a value was changed by hand"


class KnobControl:
    """Changes knobs and runs trials. `tick` is called with each snapshot."""

    def __init__(self, session: Session, clock_s: Callable[[], float]) -> None:
        self._session = session
        self._clock_s = clock_s
        self._job = session.job_key
        self.editor = KnobEditor()
        self.trials: RunningTrials | None = None
        """This dashboard's newest trials, running or over."""
        self._slack: RunningTrials | None = None
        """The newest trials of delays."""
        self.change: KnobChange | None = None
        """The newest change that a person requested."""
        self._change_s = -NEWS_S

    @property
    def log_path(self) -> str:
        """The log file of all changes; empty if there is none."""
        try:
            return str(change_log.path())
        except JobFolderError:
            return ""

    @property
    def trying(self) -> bool:
        return self.trials is not None and not self.trials.trials.over

    def tick(self, snapshot: Snapshot) -> None:
        if self._session.job_key != self._job:
            self._job = self._session.job_key
            self.editor.forget()
            self.stop_trials("another job is shown")
        now_s = self._clock_s()
        self.editor.tick(snapshot, now_s, self._session.send)
        if self.trials is not None:
            self.trials.trials.tick(snapshot)
        before = self.change
        self._follow(snapshot)
        now = self.change
        if now is None or before is None or (now.command, now.state) != (before.command, before.state):
            self._change_s = now_s

    def _follow(self, snapshot: Snapshot) -> None:
        self.change = self.editor.change(snapshot)

    @property
    def change_is_news(self) -> bool:
        return self._clock_s() - self._change_s < NEWS_S

    def step(self, snapshot: Snapshot, direction: int) -> None:
        """Step to the next value up or down."""
        self.stop_trials(BY_HAND)
        self.editor.step(snapshot, direction, self._clock_s())
        self._follow(snapshot)

    def type(self, snapshot: Snapshot, words: str) -> None:
        """Set a typed value. Raises ValueRefusedError."""
        self.stop_trials(BY_HAND)
        self.editor.type(snapshot, words, self._clock_s())
        self.tick(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        self.stop_trials(BY_HAND)
        self.editor.restore(snapshot, self._clock_s())
        self.tick(snapshot)

    def try_values(self, snapshot: Snapshot, words: str) -> None:
        """Start trials of the typed values of the selected knob. Raises ValueRefusedError."""
        held = self.editor.editable(snapshot)
        if held is not None:
            self.trials = running_trials.try_typed(self._session, snapshot, held.knob.name, words)

    def try_value_before(self, snapshot: Snapshot) -> str:
        """Start a trial of the value before the newest change, unless trials run. Return why not; empty: it
        starts.
        """
        if self.trying:
            return ""
        try:
            self.trials = running_trials.try_value_before(self._session, snapshot)
        except ValueRefusedError as fault:
            return str(fault)
        return ""

    def delays(self, snapshot: Snapshot) -> tuple[RunningTrials, str]:
        """Return trials that delay each rank in turn, for `begin_delays`, and the question to ask first.
        Raises ValueRefusedError.
        """
        return running_trials.try_delays(self._session, snapshot)

    def begin_delays(self, trials: RunningTrials) -> None:
        self.trials = self._slack = trials

    @property
    def slopes(self) -> dict[int, Effect]:
        """Return the measured slack effect by rank."""
        if self._slack is None or self._slack.job != self._job:
            return {}
        from overlaptop.trials.slack import NOT_KNOWN, verdict

        tried = self._slack.state.tried
        return {
            each.candidate.key: each.effect for each in tried if each.effect and verdict(each) != NOT_KNOWN
        }

    def stop_trials(self, why: str = "stopped") -> None:
        """Start no more trials; the current one ends by itself."""
        if self.trials is not None:
            self.trials.trials.stop(why)

    @property
    def best(self) -> int | None:
        """Return the best value found by finished trials of this job; None: the present one."""
        trials = self.trials
        if trials is None or trials.knob is None or self.trying or trials.job != self._job:
            return None
        from overlaptop.trials.settings import best_of

        found = best_of(trials.knob, trials.state)
        return found.value if found is not None else None

    def keep_best(self, snapshot: Snapshot) -> None:
        """Set the best value found."""
        best = self.best
        if best is not None and self.trials is not None and self.trials.knob is not None:
            self.editor.select(self.trials.knob.name)
            self.type(snapshot, str(best))
