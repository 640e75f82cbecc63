"""The work of ``overlaptop tune``: try values of a setting on a running job, and print what they do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from overlaptop import text
from overlaptop.console import CommandError, print_data, print_message
from overlaptop.console.following import TICK_S, send
from overlaptop.console.hosts import Hosts, pause
from overlaptop.console.jobs import join
from overlaptop.console.setting import knob_of, print_change
from overlaptop.console.table import Table
from overlaptop.console.trials import TrialRun, print_refusals, progress_words, shares
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.session import Session
from overlaptop.launch.launcher import Launcher, of_workload, place
from overlaptop.launch.request import LaunchError
from overlaptop.report.knobs import present_words
from overlaptop.trials.effect import CONFIDENCE
from overlaptop.trials.runner import Trials, TrialsState, Tried
from overlaptop.trials.settings import Best, best_of, difference_words, try_values, verdict
from overlaptop.trials.values import layout_of, values_to_try
from overlaptop.wire.commands import make_setting
from overlaptop.wire.knobs import Knob
from overlaptop.workloads import catalog
from overlaptop.workloads.options import OptionsError

KNOBS_S = 5.0
"""For a job whose steps are counted to say what can be changed of it."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What is to be tried, and how."""

    knob: str
    values: tuple[int, ...] = ()
    """Empty: those of `trials.values`."""
    least: int | None = None
    most: int | None = None
    """None: as far as makes sense around the present value."""
    budget_steps: int | None = None
    keep: bool = False
    """Set the best value afterwards."""
    as_json: bool = False


def run_on_job(key: str | None, request: TuneRequest, hosts: Hosts | None = None) -> int:
    """Try values on the job called `key`, or on the only one."""
    with closing(join(key, hosts)) as session:
        return _tune(session, request)


def run_on_script(script: str, options: Sequence[str], nproc: int | None, request: TuneRequest) -> int:
    """Start a bundled workload or a script of one's own under torchrun, try values, and end it."""
    try:
        launcher = _launcher(script, options, nproc)
        shown = Path(script).resolve() if Path(script).is_file() else script
        print_message(f"{shown} on {launcher.placement.in_words}")
        with launcher:
            launcher.start()
            with closing(JobSession(JobSelector(matches=launcher.owns))) as session:
                return _tune(session, request, launcher)
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


def _tune(session: Session, request: TuneRequest, launcher: Launcher | None = None) -> int:
    run = TrialRun(session, launcher)
    run.await_steps()
    held = _await_knob(run, request.knob)
    knob = held.knob
    trials = _trials(session, held, request)

    def report(tried: Tried, state: TrialsState) -> None:
        if request.as_json:
            print_data(_trial_record(session.job_key, knob, tried))
        print_message(f"{progress_words(tried, state)}: {difference_words(tried.effect)}")

    interrupted = run.run(trials, report)
    state = trials.state
    best = best_of(knob, state)
    _print(session.job_key, knob, state, best, as_json=request.as_json)
    if interrupted:
        return 130
    if state.failed:
        raise run.job_ended() or CommandError(state.why)
    if state.why:
        print_message(f"{state.why}: a larger --budget tries for longer")
    if request.keep and best is not None and best.value is not None:
        command = make_setting(knob, best.value)
        send(session, command)
        print_change(session, command)
    return 0


def _await_knob(run: TrialRun, name: str) -> JobKnob:
    """The knob, once it is known on all ranks."""
    since_s = time.monotonic()
    while True:
        snapshot = run.look()
        found = snapshot.knob(name)
        if found is not None and not found.differs:
            return found
        if time.monotonic() - since_s > KNOBS_S:
            return knob_of(snapshot, name)
        pause(run.session, TICK_S)


def _trials(session: Session, held: JobKnob, request: TuneRequest) -> Trials:
    layout = layout_of(held.knob, session.tick())
    try:
        values = request.values or values_to_try(held.knob, request.least, request.most, layout)
        return try_values(session, held, values, budget_steps=request.budget_steps)
    except ValueError as error:
        raise CommandError(str(error), 1 if held.refusal or held.differs else 2) from error


def _print(job: str | None, knob: Knob, state: TrialsState, best: Best | None, *, as_json: bool) -> None:
    """What was measured and found, if anything was."""
    print_refusals(state)
    if state.present_ns is None:
        print_message("nothing was measured yet")
    elif as_json:
        for tried in state.tried:
            print_data(_value_record(job, knob, tried))
        print_data(_result_record(job, knob, state, best))
    else:
        print_data(_table(knob, state, best))
        if best is not None:
            print_data(text.printable(best.line))
            if best.code:
                print_data(f"to keep it: {text.printable(best.code)}")


def _table(knob: Knob, state: TrialsState, best: Best | None) -> str:
    """A row for the present value and for each that was tried."""
    table = Table([knob.name, "step", "difference", "trials", ""], left={""})
    table.add(present_words(knob), text.duration(state.present_ns), "", "", "present")
    for tried in state.tried:
        is_best = best is not None and best.value == tried.candidate.key
        table.add(
            tried.candidate.name,
            text.duration(_step_ns(tried, state)),
            difference_words(tried.effect),
            str(len(tried.pairs)),
            "best" if is_best else verdict(tried),
        )
    return table.render()


def _step_ns(tried: Tried, state: TrialsState) -> float | None:
    """The step with a value, where the present one takes as long as in all trials together."""
    if tried.effect is None or state.present_ns is None:
        return None
    return state.present_ns * (1 + tried.effect.centre)


def _trial_record(job: str | None, knob: Knob, tried: Tried) -> dict[str, object]:
    pair = tried.pairs[-1]
    return {
        "type": "trial",
        "job": job,
        "knob": knob.name,
        "value": tried.candidate.key,
        "tried_ns": round(pair.tried_ns),
        "present_ns": round(pair.present_ns),
    }


def _value_record(job: str | None, knob: Knob, tried: Tried) -> dict[str, object]:
    return {
        "type": "value",
        "job": job,
        "knob": knob.name,
        "value": tried.candidate.key,
        "trials": len(tried.pairs),
        "steps": tried.steps,
        **shares(tried.effect, "difference"),
        "verdict": verdict(tried),
    }


def _result_record(job: str | None, knob: Knob, state: TrialsState, best: Best | None) -> dict[str, object]:
    return {
        "type": "result",
        "job": job,
        "knob": knob.name,
        "present": knob.value_text,
        "present_step_ns": round(state.present_ns) if state.present_ns is not None else None,
        "best": best.value if best is not None else None,
        **shares(best.effect if best is not None else None, "difference"),
        "rivals": list(best.rivals) if best is not None else None,
        "confidence": CONFIDENCE,
        "steps_spent": state.spent_steps,
        "ended": state.why,
        "line": best.line if best is not None else None,
        "code": best.code if best is not None else None,
    }
