"""The work of ``overlaptop tune``: find the best value of a setting by measurement, without a screen."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from overlaptop import text
from overlaptop.console import CommandError, job_failure, print_data, print_message, search_report
from overlaptop.console.following import TICK_S
from overlaptop.console.hosts import Hosts, pause
from overlaptop.console.jobs import join
from overlaptop.console.setting import knob_of
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.launch.launcher import Launcher, of_workload, place
from overlaptop.launch.request import LaunchError
from overlaptop.tuning.search import SearchOptions
from overlaptop.tuning.state import SearchState
from overlaptop.tuning.tuner import Tuner
from overlaptop.wire.knobs import Knob
from overlaptop.workloads import catalog
from overlaptop.workloads.options import OptionsError

KNOBS_S = 5.0
"""For a job whose steps are counted to say what can be changed of it."""
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


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What is to be found, and how."""

    knob: str
    least: int | None
    most: int | None
    """None: as far as makes sense for the knob."""
    budget_steps: int | None
    keep: bool
    """Leave the best value set."""
    as_json: bool


def run_on_job(key: str | None, request: TuneRequest, hosts: Hosts | None = None) -> int:
    """Search on the job called `key`, or on the only one. Its value is restored, unless `request.keep`."""
    with closing(join(key, hosts)) as session:
        return _TuneRun(session, request).run()


def run_on_script(script: str, options: Sequence[str], nproc: int | None, request: TuneRequest) -> int:
    """Start a bundled workload or a script of one's own under torchrun, search, and end it."""
    try:
        launcher = _launcher(script, options, nproc)
        shown = Path(script).resolve() if Path(script).is_file() else script
        print_message(f"{shown} on {launcher.placement.in_words}")
        with launcher:
            launcher.start()
            with closing(JobSession(JobSelector(matches=launcher.owns))) as session:
                return _TuneRun(session, request, launcher).run()
    except LaunchError as fault:
        raise CommandError(str(fault)) from fault


def _launcher(script: str, options: Sequence[str], nproc: int | None) -> Launcher:
    workload = catalog.find(script)
    if workload is None:
        if not Path(script).is_file():
            names = ", ".join(each.name for each in catalog.WORKLOADS)
            raise CommandError(f"no script {script}, and no workload of that name; there are: {names}", 2)
        return Launcher(script, options, place(nproc, may_share=False), agent_options=("--control",))
    try:
        given = workload.check(options)
        return of_workload(workload, options, place(nproc, str(given.get("device", "auto"))))
    except OptionsError as fault:
        raise CommandError(f"{workload.name}: {fault}", 2) from fault


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


class _TuneRun:
    """One search, from the first look at the job to its last line."""

    def __init__(self, session: Session, request: TuneRequest, launcher: Launcher | None = None) -> None:
        self._session, self._request, self._launcher = session, request, launcher
        self._reported = 0

    def run(self) -> int:
        with _stop_signals() as stop:
            knob = self._find_knob(stop)
            if knob is None:
                return stop()
            request = self._request
            try:
                tuner = Tuner(
                    self._session,
                    knob,
                    request.least,
                    request.most,
                    options=SearchOptions(budget_steps=request.budget_steps),
                    keep=request.keep,
                )
            except ValueError as error:
                raise CommandError(str(error), 2) from error
            stopped = False
            while not tuner.over:
                if stop() and not stopped:
                    stopped = True
                    tuner.stop()
                    if self._launcher is not None:
                        break  # the job ends, and its value with it
                    print_message(f"{knob.name} goes back to {knob.value_text}; once more to leave at once")
                tuner.tick(self._look())
                self._report(tuner.state)
                pause(self._session, TICK_S)
        state = tuner.state
        self._conclude(state)
        if stopped and not state.failed:
            return stop()
        if state.why:
            raise self._job_ended() or CommandError(state.why)
        return 0

    def _look(self) -> Snapshot:
        snapshot = self._session.tick()
        # A rank that is watched traces more often, so that more windows know what of them was exposed.
        self._session.watch([view.rank for view in snapshot.ranks[:1]])
        return snapshot

    def _job_ended(self) -> CommandError | None:
        """What to say of the job that was started here, if it has ended by itself."""
        launcher = self._launcher
        if launcher is None:
            return None
        snapshot = self._session.tick()
        ending = snapshot.hub_state is HubState.ENDED or any(view.ended for view in snapshot.ranks)
        deadline_s = time.monotonic() + END_LIMIT_S * ending
        while launcher.poll() is None:
            if time.monotonic() > deadline_s:
                return None
            time.sleep(TICK_S)
        if launcher.poll() == 0:
            return CommandError("the job ended before the search did: give it more steps")
        return job_failure(launcher)

    def _find_knob(self, stop: Callable[[], int]) -> Knob | None:
        """The knob, once steps are counted and it is known; None: it is to stop."""
        name, since_s, first_step = self._request.knob, None, _FirstStep()
        while not stop():
            gone = self._launcher is not None and self._launcher.poll() is not None
            snapshot = self._look()
            found = snapshot.knob(name)
            if gone or snapshot.hub_state is HubState.ENDED:
                raise self._job_ended() or CommandError("the job ended")
            # Steps of the past are not of the present value.
            stepping = not snapshot.replaying and all(view.last is not None for view in snapshot.ranks)
            if snapshot.ranks and stepping:
                since_s = since_s or time.monotonic()
                if found is not None and not found.differs:
                    if found.refusal:
                        raise CommandError(f"{name} cannot be changed: {found.refusal}")
                    return found.knob
                if time.monotonic() - since_s > KNOBS_S:
                    knob_of(snapshot, name)
                    raise CommandError(f"ranks have different values of {name}: set it first")
            else:
                first_step.wait(snapshot)
            pause(self._session, TICK_S)
        return None

    def _report(self, state: SearchState) -> None:
        for window in state.windows[self._reported :]:
            self._reported += 1
            if self._request.as_json:
                print_data(search_report.window_record(self._session.job_key, state, window))
            print_message(search_report.window_words(state, window))

    def _conclude(self, state: SearchState) -> None:
        """Print what was found, if anything was, and which value the job has."""
        if state.result is None:
            print_message("; ".join(filter(None, ("nothing was measured yet", self._left(state)))))
            return
        if self._request.as_json:
            for point in state.points:
                print_data(search_report.point_record(self._session.job_key, state, point))
            print_data(search_report.result_record(self._session.job_key, state))
        else:
            print_data(search_report.table(state))
            print_data(text.printable(search_report.last_line(state, self._left(state))))
        if state.result.found.spent:
            steps = text.plural(self._request.budget_steps or state.steps_spent, "step")
            print_message(f"{steps} allow no further window: a larger --budget does")

    def _left(self, state: SearchState) -> str:
        """Which value the job has; empty: it ends with this command."""
        return state.left if self._launcher is None else ""


@contextmanager
def _stop_signals() -> Iterator[Callable[[], int]]:
    """Ctrl-C and SIGTERM leave time to put things back: gives the exit status asked for, 0 while none is.

    A second one ends at once.
    """
    status = 0

    def receive(signum: int, _frame: FrameType | None) -> None:
        nonlocal status
        if status:
            raise SystemExit(128 + signum)
        status = 128 + signum

    before = {signum: signal.signal(signum, receive) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: status
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
