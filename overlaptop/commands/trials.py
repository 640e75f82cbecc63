"""What ``overlaptop tune`` and ``slack`` share: waiting for steps, and running trials to their end."""

from __future__ import annotations

import time
from collections.abc import Callable

from overlaptop.commands.following import TICK_S
from overlaptop.commands.hosts import pause
from overlaptop.commands.output import CommandError, job_failure, print_message
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.launch.launcher import Launcher
from overlaptop.trials.effect import Effect
from overlaptop.trials.runner import Trials, TrialsState, Tried

STARTING_S = 600.0
"""For a job to finish its first step: it may load or compile a model first."""
LATE_S = 60.0
"""For the other ranks, once one has."""
ANNOUNCE_S = 5.0
"""After so long without a step a line says what is waited for."""
MOST_NAMED = 8
"""Ranks."""
END_LIMIT_S = 5.0
"""From a hub's word that every rank has gone to torchrun's exit."""


class TrialRun:
    """Trials on one job, from the first look at it to their last one."""

    def __init__(self, session: Session, launcher: Launcher | None = None) -> None:
        """``launcher``: of a job that was started here."""
        self.session = session
        self._launcher = launcher
        self._told: dict[int, int] = {}
        """By candidate, the trials that were reported."""

    def await_steps(self) -> Snapshot:
        """The first snapshot in which every rank has finished a step. CommandError: none comes."""
        first_step = _FirstStep()
        while True:
            snapshot = self.look()
            # Steps of the past are not of the present value.
            if snapshot.ranks and not snapshot.replaying and all(view.last for view in snapshot.ranks):
                return snapshot
            first_step.wait(snapshot)
            pause(self.session, TICK_S)

    def look(self) -> Snapshot:
        """The newest snapshot. CommandError: the job ended."""
        snapshot = self.session.tick()
        gone = self._launcher is not None and self._launcher.poll() is not None
        if gone or snapshot.hub_state is HubState.ENDED:
            raise self.job_ended() or CommandError("the job ended")
        return snapshot

    def run(self, trials: Trials, report: Callable[[Tried, TrialsState], None]) -> bool:
        """Try until the trials are over, or Ctrl-C; returns whether it was Ctrl-C.

        ``report``: is given a candidate after each of its trials.
        """
        try:
            while not trials.over:
                trials.tick(self.session.tick())
                state = trials.state
                for tried in state.tried:
                    if len(tried.pairs) > self._told.get(tried.candidate.key, 0):
                        self._told[tried.candidate.key] = len(tried.pairs)
                        report(tried, state)
                pause(self.session, TICK_S)
        except KeyboardInterrupt:
            trials.stop()
            return True
        if all(tried.refused for tried in trials.state.tried):
            raise CommandError(trials.state.tried[0].refused)
        return False

    def job_ended(self) -> CommandError | None:
        """What to say of the job that was started here, if it has ended by itself."""
        launcher = self._launcher
        if launcher is None:
            return None
        snapshot = self.session.tick()
        ending = snapshot.hub_state is HubState.ENDED or any(view.ended for view in snapshot.ranks)
        deadline_s = time.monotonic() + END_LIMIT_S * ending
        while launcher.poll() is None:
            if time.monotonic() > deadline_s:
                return None
            time.sleep(TICK_S)
        if launcher.poll() == 0:
            return CommandError("the job ended before the trials did: give it more steps")
        return job_failure(launcher)


def progress_words(tried: Tried, state: TrialsState) -> str:
    """``trial 3 of 50 MiB, 340 of 3,000 steps spent``."""
    of_budget = f" of {state.budget_steps:,}" if state.budget_steps is not None else ""
    return (
        f"trial {len(tried.pairs)} of {tried.candidate.name}, {state.spent_steps:,}{of_budget} steps spent"
    )


def print_refusals(state: TrialsState) -> None:
    """Say on stderr what the job did not try, and why."""
    for tried in state.tried:
        if tried.refused:
            print_message(f"{tried.candidate.name} was not tried: {tried.refused}")


def interval(effect: Effect | None) -> tuple[float | None, float | None, float | None]:
    """An effect, and the low and the high end of its interval, as records have them."""
    if effect is None:
        return None, None, None
    return effect.centre, *((effect.low, effect.high) if effect.bounded else (None, None))


class _FirstStep:
    """Waits for every rank's first step, and not for ever."""

    def __init__(self) -> None:
        self._since_s, self._limit_s = time.monotonic(), STARTING_S
        self._others = self._announced = False
        """Some rank has finished one; it was said who has not."""

    def wait(self, snapshot: Snapshot) -> None:
        """Look once more. CommandError: it has taken too long."""
        now_s = time.monotonic()
        late = [view.rank for view in snapshot.ranks if view.last is None]
        if not self._others and len(late) < len(snapshot.ranks):
            self._others, self._since_s, self._limit_s = True, now_s, LATE_S
        more = f" and {len(late) - MOST_NAMED} more" if len(late) > MOST_NAMED else ""
        who = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late[:MOST_NAMED]))}{more}"
        if not late:
            who = "the job"
        if now_s - self._since_s > self._limit_s:
            others = ", and the others have" if self._others else ""
            raise CommandError(
                f"{who} finished no step within {self._limit_s:.0f} s{others}: nothing can be measured"
            )
        if not self._announced and now_s - self._since_s > ANNOUNCE_S:
            self._announced = True
            print_message(f"waits for the first step of {who}")
