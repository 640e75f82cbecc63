"""Shared by ``overlaptop tune`` and ``slack``: wait for steps, run trials, print their results."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from overlaptop.commands.following import pause
from overlaptop.commands.output import CommandError, job_failure, print_data, print_message
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.launch.launcher import Launcher
from overlaptop.records import Record
from overlaptop.text import duration, named_ranks, plural
from overlaptop.trials.effect import Effect
from overlaptop.trials.runner import Trials, TrialsState, Tried

STARTING_S = 600.0  # Time limit for all ranks' first step: they may load or compile a model first
ANNOUNCE_S = 5.0  # Time without a step until a line says which ranks are missing
END_LIMIT_S = 5.0  # Longest time from the hub's report that every rank has ended to torchrun's exit


def await_steps(session: Session, launcher: Launcher | None = None) -> Snapshot:
    """Return the first snapshot where every rank has finished a step. CommandError: none comes."""
    began_s, announced = time.monotonic(), False
    while True:
        snapshot = session.tick()
        gone = launcher is not None and launcher.poll() is not None
        if gone or snapshot.hub_state is HubState.ENDED:
            raise _job_ended(launcher) or CommandError("the job ended")
        late = [view.rank for view in snapshot.ranks if view.last is None]
        # Replayed steps may have had another value.
        if snapshot.ranks and not late and not snapshot.replaying:
            return snapshot
        who = named_ranks(late) if late else "the job"
        waited_s = time.monotonic() - began_s
        if waited_s > STARTING_S:
            within = f"finished no step within {STARTING_S:.0f} s"
            raise CommandError(f"{who} {within}: nothing can be measured")
        if waited_s > ANNOUNCE_S and not announced:
            announced = True
            print_message(f"waits for the first step of {who}")
        pause(session)


def _job_ended(launcher: Launcher | None) -> CommandError | None:
    """Return the error if the job that was started here has ended by itself."""
    status = None if launcher is None else launcher.wait(END_LIMIT_S)
    if launcher is None or status is None:
        return None
    if status == 0:
        return CommandError("the job ended before the trials did: give it more steps")
    return job_failure(launcher)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Trials on one job, and how they are printed."""

    session: Session
    trials: Trials
    words: Callable[[Effect | None], str]  # An effect as text
    trial_record: Callable[[Tried], Record]  # The last trial of a candidate
    records: Callable[[TrialsState], list[Record]]  # The results
    page: Callable[[TrialsState], str]  # The results as text
    launcher: Launcher | None = None  # Of a job that was started here

    def run(self, *, as_json: bool = False) -> bool:
        """Run the trials and print the progress, and with `as_json` a record of each trial. Return whether
        Ctrl-C ended them. CommandError if the job refuses all of them.
        """
        announced, told = False, dict[int, int]()
        trials = self.trials
        try:
            while not trials.over:
                trials.tick(self.session.tick())
                state = trials.state
                if not announced and state.left_ns is not None:
                    announced = True
                    steps, left = plural(state.budget_steps or 0, "step"), duration(state.left_ns)
                    print_message(f"takes {steps} at most: {left} if steps stay as long as now")
                for tried in state.tried:
                    if len(tried.pairs) > told.get(tried.candidate.key, 0):
                        told[tried.candidate.key] = len(tried.pairs)
                        if as_json:
                            print_data(self.trial_record(tried))
                        print_message(f"{_progress(tried, state)}: {self.words(tried.effect)}")
                pause(self.session)
        except KeyboardInterrupt:
            trials.stop()
            return True
        if all(tried.refused for tried in trials.state.tried):
            raise CommandError(trials.state.tried[0].refused)
        return False

    def complete(self, hint: str, *, as_json: bool) -> int:
        """Run the trials and print the results, also of trials that end early. Returns the exit status.
        ``hint``: what to try when the budget was too small. CommandError if the job ended.
        """
        interrupted = self.run(as_json=as_json)
        state = self.trials.state
        for tried in state.tried:
            if tried.refused:
                print_message(f"{tried.candidate.name} was not tried: {tried.refused}")
        if state.present_ns is None:
            print_message("nothing was measured yet")
        elif as_json:
            print_data(*self.records(state))
        else:
            print_data(self.page(state))
        if interrupted:
            return 130
        if state.failed:
            raise _job_ended(self.launcher) or CommandError(state.why)
        if state.why:
            print_message(f"{state.why}: {hint}")
        return 0


def _progress(tried: Tried, state: TrialsState) -> str:
    """Return such as ``trial 3 of 50 MiB, 340 of 3,000 steps spent``."""
    of_budget = f" of {state.budget_steps:,}" if state.budget_steps is not None else ""
    return (
        f"trial {len(tried.pairs)} of {tried.candidate.name}, {state.spent_steps:,}{of_budget} steps spent"
    )


def interval(effect: Effect | None) -> tuple[float | None, float | None, float | None]:
    """Return an effect and the ends of its interval, as in records."""
    if effect is None:
        return None, None, None
    return effect.centre, *((effect.low, effect.high) if effect.bounded else (None, None))
