"""Tries a knob's value: sets it at the agreed step and restores the old one n steps later.

All ranks know both steps from the agreement on. So all restore the value at the same step, even if the
dashboard or the hub is gone or the agent no longer measures.
"""

from overlaptop.agent.control.action import TRIAL, TRIAL_SWITCH, Action, Outcome, SettingAction
from overlaptop.agent.control.two_phase_commit import Position
from overlaptop.agent.isolation.job_exceptions import raised_by_job


class KnobTrial(Action):
    """One rank's part in trying a value for some steps."""

    acts = "trying"
    done = "tried"
    together = True
    mark = TRIAL_SWITCH

    def __init__(self, setting: SettingAction, steps: int) -> None:
        """``setting`` sets the value; it is undone ``steps`` steps after the agreed one."""
        self._setting = setting
        self._steps = steps
        self._is_set = False
        self._undoing: SettingAction | None = None
        self._end: int | None = None
        """The step at which the value is restored, once the trial has begun."""

    def refusal(self) -> str:
        return self._setting.refusal()

    def position(self, step: int) -> Position:
        return self._setting.position(step)

    def changes_settings(self, step: int) -> bool:
        """Return True except while the tried value is in force."""
        return not self._is_set or self._end is None or step >= self._end

    def boundary(self, step: int) -> bool:
        """Set the value, keep it, and restore the old one at the end; later if setting was slow."""
        if self._end is None:
            self._end = step + self._steps
        if not self._is_set:
            if self._setting.boundary(step):
                return True
            self._is_set, self.mark = True, TRIAL
        if step < self._end:
            return True
        if self._undoing is None:
            self._undoing, self.mark = self._setting.undoing(), TRIAL_SWITCH
        try:
            return self._undoing.boundary(step)
        except Exception as fault:
            if raised_by_job(fault):
                raise
            raise RuntimeError(self._why_it_stays(fault)) from fault

    def finish(self) -> Outcome:
        assert self._undoing is not None, "asked once the trial is over"
        try:
            self._undoing.finish()
        except RuntimeError as fault:
            raise RuntimeError(self._why_it_stays(fault)) from fault
        tried = self._setting.finish()
        same = tried.old == tried.new
        text = tried.text if same else f"{tried.text}, back at step {self._end:,}"
        return Outcome(text, tried.old, tried.new)

    def abandon(self) -> None:
        (self._undoing or self._setting).abandon()

    def _why_it_stays(self, fault: Exception) -> str:
        return f"the tried value {self._setting.outcome.new} stays: {fault}"
