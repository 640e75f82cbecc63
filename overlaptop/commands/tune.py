"""``overlaptop tune``: find the best value of a setting by measurement, without a screen."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from overlaptop.advice.picture import CurvePoint, MeasuredWindow, Picture
from overlaptop.advice.search import Plan
from overlaptop.advice.tuner import Tuner
from overlaptop.commands import CommandError, say
from overlaptop.commands.following import join_job
from overlaptop.commands.table import Table
from overlaptop.fleet.session import JobSelector, JobSession
from overlaptop.fleet.snapshot import LinkState, Snapshot
from overlaptop.launcher import Launcher, LaunchError, of_workload, place
from overlaptop.tui import text
from overlaptop.wire.knobs import Knob
from overlaptop.workloads import catalog
from overlaptop.workloads.options import OptionsError

TICK_S = 0.05
KNOBS_S = 5.0
"""For a job whose steps are counted to say what can be changed of it."""
END_LIMIT_S = 5.0
"""From a hub's word that every rank has gone to torchrun's exit."""
MOST_WATCHED = 16
"""Ranks whose timeline the model learns from."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be found, and how."""

    knob: str
    least: int | None
    most: int | None
    """None: as far as makes sense for the knob."""
    budget_steps: int | None
    keep: bool
    """Leave the best value set."""
    as_json: bool


def run_on_job(key: str | None, wish: Wish) -> int:
    """Search on the job called `key`, or on the only one. Its value is restored, unless `wish.keep`."""
    session = join_job(key)
    try:
        return _Search(session, wish).run()
    finally:
        session.close()


def run_on_script(script: str, options: Sequence[str], nproc: int | None, wish: Wish) -> int:
    """Start a bundled workload or a script of one's own under torchrun, search, and end it."""
    try:
        launcher = _launcher(script, options, nproc)
        say(f"{script} on {launcher.placement.in_words}")
        with launcher:
            launcher.start()
            session = JobSession(JobSelector(matches=launcher.owns))
            try:
                return _Search(session, wish, launcher).run()
            finally:
                session.close()
    except LaunchError as fault:
        raise CommandError(str(fault)) from fault


def _launcher(script: str, options: Sequence[str], nproc: int | None) -> Launcher:
    workload = catalog.find(script)
    if workload is None:
        if not Path(script).is_file():
            names = ", ".join(each.name for each in catalog.WORKLOADS)
            raise CommandError(f"no script {script}, and no workload of that name; there are: {names}", 2)
        return Launcher(script, options, place(nproc), agent_options=("--control",))
    try:
        given = workload.check(options)
    except OptionsError as fault:
        raise CommandError(f"{workload.name}: {fault}", 2) from fault
    return of_workload(workload, options, place(nproc, str(given.get("device", "auto"))))


class _Search:
    """One search, from the first look at the job to its last line."""

    def __init__(self, session: JobSession, wish: Wish, launcher: Launcher | None = None) -> None:
        self._session, self._wish, self._launcher = session, wish, launcher
        self._told = 0
        """Windows."""

    def run(self) -> int:
        with _told_to_end() as asked:
            knob = self._find_knob(asked)
            if knob is None:
                return asked()
            wish = self._wish
            try:
                plan = Plan(budget_steps=wish.budget_steps)
                tuner = Tuner(self._session, knob, wish.least, wish.most, plan=plan, keep=wish.keep)
            except ValueError as error:
                raise CommandError(str(error), 2) from error
            stopped = False
            while not tuner.over:
                if asked() and not stopped:
                    if self._launcher is not None:
                        break  # the job ends, and its value with it
                    stopped = True
                    say(f"{knob.name} goes back to {knob.value_text}; once more to leave at once")
                    tuner.stop()
                tuner.tick(self._look())
                self._tell(tuner.picture)
                time.sleep(TICK_S)
        picture = tuner.picture
        if not tuner.over or (stopped and not picture.failed):
            return asked()
        self._conclude(picture)
        if picture.why:
            raise self._job_ended() or CommandError(picture.why)
        return 0

    def _look(self) -> Snapshot:
        snapshot = self._session.tick()
        if len(snapshot.ranks) <= MOST_WATCHED:
            self._session.watch([view.rank for view in snapshot.ranks])
        return snapshot

    def _job_ended(self) -> CommandError | None:
        """What to say of the job that was started here, if it has ended by itself."""
        launcher = self._launcher
        if launcher is None:
            return None
        snapshot = self._session.tick()
        ending = snapshot.link is LinkState.ENDED or any(view.ended for view in snapshot.ranks)
        deadline_s = time.monotonic() + END_LIMIT_S * ending
        while launcher.poll() is None:
            if time.monotonic() > deadline_s:
                return None
            time.sleep(TICK_S)
        if launcher.poll() == 0:
            return CommandError("the job ended before the search did: give it more steps")
        for line in launcher.complaint():
            print(text.printable(line), file=sys.stderr)  # noqa: T201
        return CommandError(f"the job failed ({launcher.how_it_ended})", 2 if launcher.usage_error else 1)

    def _find_knob(self, asked: Callable[[], int]) -> Knob | None:
        """The knob, once steps are counted and it is known; None: told to end."""
        name, since_s = self._wish.knob, None
        while not asked():
            gone = self._launcher is not None and self._launcher.poll() is not None
            snapshot = self._look()
            found = next((each for each in snapshot.knobs if each.knob.name == name), None)
            if gone or snapshot.link is LinkState.ENDED:
                raise self._job_ended() or CommandError("the job ended")
            if snapshot.ranks and all(view.last is not None for view in snapshot.ranks):
                since_s = since_s or time.monotonic()
                if found is not None and not found.differs:
                    if found.refusal:
                        raise CommandError(f"{name} cannot be changed: {found.refusal}")
                    return found.knob
                if time.monotonic() - since_s > KNOBS_S and found is not None:
                    raise CommandError(f"ranks have different values of {name}: set it first")
                if time.monotonic() - since_s > KNOBS_S:
                    there_is = ", ".join(each.knob.name for each in snapshot.knobs) or "nothing"
                    raise CommandError(f"{name} cannot be set; of this job there is: {there_is}", 2)
            time.sleep(TICK_S)
        return None

    def _tell(self, picture: Picture) -> None:
        for window in picture.windows[self._told :]:
            self._told += 1
            if self._wish.as_json:
                self._put(window_record(self._session.job_key, picture, window))
            say(window_words(picture, window))

    def _conclude(self, picture: Picture) -> None:
        """Print what was found, if anything was."""
        if picture.result is None:
            return
        if self._wish.as_json:
            for point in picture.points:
                self._put(point_record(self._session.job_key, picture, point))
            self._put(result_record(self._session.job_key, picture))
        else:
            print(table(picture))  # noqa: T201
            print(text.printable(last_line(picture)), flush=True)  # noqa: T201
        if picture.result.spent:
            say(f"{picture.steps_spent} steps were not enough: --budget allows more")

    def _put(self, record: dict[str, object]) -> None:
        print(json.dumps(record), flush=True)  # noqa: T201


def window_words(picture: Picture, window: MeasuredWindow) -> str:
    """One line of progress."""
    mean_ns = sum(window.steps_ns) / len(window.steps_ns)
    words = [
        f"round {window.round + 1}: {picture.knob.name} {window.value} {picture.knob.unit}".rstrip(),
        f"{text.duration(mean_ns)} a step in {len(window.steps_ns)} steps",
        f"{picture.racing} in the race",
        f"{picture.steps_spent} steps spent"
        + f", at most {picture.steps_to_go} to go" * (not picture.over),
    ]
    return ", ".join(words)


def table(picture: Picture) -> str:
    """What was measured of each value, and how far the model is off."""
    rows = Table(
        [
            picture.knob.name,
            "step time",
            "95 % interval",
            "exposed",
            "windows",
            "steps",
            "model",
            "error",
            "",
        ],
        left={""},
    )
    result = picture.result
    for point in picture.points:
        error = point.model_error
        rows.add(
            [
                str(point.value),
                text.duration(point.step_ns),
                f"{text.duration(point.low_ns)} .. {text.duration(point.high_ns)}",
                text.duration(point.exposed_ns),
                str(point.windows),
                str(point.steps),
                text.duration(point.predicted_ns),
                text.UNKNOWN if error is None else f"{error * 100:+.1f} %",
                "best" if result is not None and result.value == point.value else point.state.value,
            ]
        )
    return f"{rows.render()}\n{model_words(picture)}"


def model_words(picture: Picture) -> str:
    """How well the model knows the job: what it had seen when it spoke, and what it had not."""
    now = [abs(each.model_error) for each in picture.points if each.model_error is not None]
    blind = [abs(each.foretold_error) for each in picture.points if each.foretold_error is not None]
    if not now:
        return f"no model: {picture.model_reason}"
    words = f"the model is off by {text.percent(sum(now) / len(now))} on average"
    words += f", {text.percent(max(now))} at most"
    if blind:
        words += (
            f"; before a value was measured, by {text.percent(sum(blind) / len(blind))} on average "
            f"({len(blind)} values)"
        )
    return words


def last_line(picture: Picture) -> str:
    """The best setting, what it saves, how sure, and the line to paste."""
    found = picture.result
    assert found is not None
    return f"{found.line}. In the script: {found.code}" if found.code else found.line


def window_record(job: str | None, picture: Picture, window: MeasuredWindow) -> dict[str, object]:
    """A window as it was measured; times in ns."""
    return {
        "type": "window",
        "job": job,
        "knob": picture.knob.name,
        "value": window.value,
        "round": window.round,
        "first_step": window.first_step,
        "step_ns": list(window.steps_ns),
        "exposed_ns": window.exposed_ns,
    }


def point_record(job: str | None, picture: Picture, point: CurvePoint) -> dict[str, object]:
    """All that is known of a value; times in ns, errors of the model as fractions."""
    return {
        "type": "point",
        "job": job,
        "knob": picture.knob.name,
        "value": point.value,
        "state": point.state.value,
        "windows": point.windows,
        "steps": point.steps,
        "step_ns": round(point.step_ns),
        "low_ns": round(point.low_ns),
        "high_ns": round(point.high_ns),
        "exposed_ns": point.exposed_ns,
        "predicted_ns": None if point.predicted_ns is None else round(point.predicted_ns),
        "model_error": point.model_error,
        "foretold_ns": None if point.foretold_ns is None else round(point.foretold_ns),
        "foretold_error": point.foretold_error,
    }


def result_record(job: str | None, picture: Picture) -> dict[str, object]:
    """What was found; savings are fractions of the step with the value before."""
    found = picture.result
    assert found is not None
    return {
        "type": "result",
        "job": job,
        "knob": picture.knob.name,
        "value": found.value,
        "before": found.before_text,
        "saves": found.saves,
        "saves_low": found.saves_low if math.isfinite(found.saves_low) else None,
        "saves_high": found.saves_high if math.isfinite(found.saves_low) else None,
        "confidence": found.confidence,
        "known": found.known,
        "rivals_gain": found.rivals_gain,
        "steps_spent": picture.steps_spent,
        "ended": picture.why,
        "line": found.line,
        "code": found.code,
    }


@contextmanager
def _told_to_end() -> Iterator[Callable[[], int]]:
    """Ctrl-C and SIGTERM leave time to put things back: gives the exit status asked for, 0 while none is.

    A second one ends at once.
    """
    status = 0

    def hear(signum: int, _frame: FrameType | None) -> None:
        nonlocal status
        if status:
            raise SystemExit(128 + signum)
        status = 128 + signum

    before = {signum: signal.signal(signum, hear) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: status
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
