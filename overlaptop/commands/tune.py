"""``overlaptop tune``: try values of a setting on a running job."""

import argparse
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from overlaptop import text
from overlaptop.commands.arguments import add_flag, add_hosts, hosts_of, job_key, positive
from overlaptop.commands.following import send
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, Table, print_data, print_message
from overlaptop.commands.set import await_knobs, knob_of, print_change
from overlaptop.commands.trials import TrialRun, interval
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.session import Session
from overlaptop.launch.launcher import Launcher, of_workload, place
from overlaptop.launch.request import LaunchError
from overlaptop.records import Record, TuneResultRecord, TuneTrialRecord, TuneValueRecord
from overlaptop.report.knobs import present_words
from overlaptop.trials.effect import CONFIDENCE
from overlaptop.trials.runner import Trials, TrialsState, Tried
from overlaptop.trials.settings import Best, best_of, difference_words, try_values, verdict
from overlaptop.trials.values import layout_of, values_to_try
from overlaptop.wire.commands import make_setting
from overlaptop.wire.knobs import Knob
from overlaptop.workloads import catalog
from overlaptop.workloads.options import OptionsError

DESCRIPTION = """\
Find the best value of a setting by trials: on a running job, or on SCRIPT, which is started under torchrun,
with an agent that allows it, and ended afterwards. SCRIPT is a bundled workload's name, or the path of a
script of your own; what follows -- goes to it:

  overlaptop tune --values 10,50,100                          bucket_cap_mb of the job that runs here
  overlaptop tune train.py --nproc 2 --range 1:400 -- --epochs 3

In a trial all ranks take a value at one step, and go back by themselves some steps later. Each value is
tried seven times or more, in random order, against the steps before and after. Trials of a value end once
its difference is known with 95 % confidence, or known to be less than 1 %.

Ctrl-C, or the death of this command, leaves nothing to undo: the job has the value that it had before.
"""
EPILOG = """\
stdout gets a table: each value, its step, its difference from the present value with the 95 % interval, the
number of trials, and a verdict: shorter, longer, no difference, not known. The last lines name the best
value and the line of code that makes it permanent. stderr gets the progress. With --json: a record for each
trial ("trial"), for each value ("value") and for the result ("result"). Times are ns, differences are
fractions of the present step, null is unknown.
exit status: 0 when all is known or the budget is used up, 1 when the trials ended early (the job ended or
refused, somebody else changed it), 2 for a usage error, 130 after Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "overlaptop tune [SCRIPT] [options] [-- script's options]"
    add = parser.add_argument
    add("script", nargs="?", metavar="SCRIPT", help="start this script (default: a running job)")
    add("--knob", default="bucket_cap_mb", metavar="NAME", help="the setting (default: %(default)s)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--values",
        type=_values,
        default=(),
        metavar="V,V",
        help="try these (default: up to six around the present value, by factors of two)",
    )
    what.add_argument(
        "--range",
        type=_range,
        default=(None, None),
        metavar="A:B",
        help="try up to seven values from A to B",
    )
    add(
        "--budget",
        type=positive,
        metavar="STEPS",
        help="take STEPS steps at most (default: for each value 1,000, or 90 s if longer)",
    )
    add("--job", type=job_key, metavar="KEY", help="the running job, as --list names it")
    add_flag(parser, "--keep", "set the best value on the running job")
    add("--nproc", type=positive, metavar="N", help="SCRIPT's processes (default: one a GPU, else 2)")
    add_flag(parser, "--json", "print records, not a table and a line")
    parser.set_defaults(script_words=[])
    add_hosts(parser)


def run(options: argparse.Namespace) -> int:
    script = options.script
    if script is None and (options.nproc is not None or options.script_words):
        raise CommandError("--nproc and what follows -- go with SCRIPT", 2)
    if script is not None and (options.job is not None or options.keep):
        raise CommandError("--job and --keep are for a job that runs: give no SCRIPT with them", 2)
    hosts = hosts_of(options)
    if script is None:
        with closing(join(options.job, hosts)) as session:
            return _tune(session, options)
    if hosts is not None:
        raise CommandError("SCRIPT is started here: give no host with it", 2)
    try:
        launcher = _launcher(script, options.script_words, options.nproc)
        shown = Path(script).resolve() if Path(script).is_file() else script
        print_message(f"{shown} on {launcher.placement.describe}")
        with launcher:
            launcher.start()
            with closing(JobSession(JobSelector(matches=launcher.owns))) as session:
                return _tune(session, options, launcher)
    except LaunchError as fault:
        raise CommandError(str(fault)) from fault


def _values(words: str) -> tuple[int, ...]:
    if re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", words) is None:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between them, not {words!r}")
    return tuple(map(int, words.split(",")))


def _range(words: str) -> tuple[int, int]:
    found = re.fullmatch(r"(-?[0-9]{1,9}):(-?[0-9]{1,9})", words)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"must be A:B, two whole numbers with A <= B, not {words!r}")
    return int(found[1]), int(found[2])


def _launcher(script: str, options: Sequence[str], nproc: int | None) -> Launcher:
    workload = catalog.find(script)
    if workload is None:
        if not Path(script).is_file():
            names = ", ".join(each.name for each in catalog.WORKLOADS)
            raise CommandError(f"no script {script}, and no workload of that name; there are: {names}", 2)
        return Launcher(script, options, place(nproc, may_share=False), agent_options=("--control",))
    try:
        return of_workload(workload, options, nproc)
    except OptionsError as fault:
        raise CommandError(f"{workload.name}: {fault}", 2) from fault


def _tune(session: Session, options: argparse.Namespace, launcher: Launcher | None = None) -> int:
    run = TrialRun(session, launcher)
    run.await_steps()
    held = knob_of(await_knobs(session), options.knob)
    knob, job = held.knob, session.job_key
    trials = trials_of(session, held, options.values, options.range, options.budget)

    def report(tried: Tried) -> str:
        if options.json:
            print_data(_trial_record(job, knob, tried))
        return difference_words(tried.effect)

    def results(state: TrialsState) -> Iterable[str | Record]:
        best = best_of(knob, state)
        if options.json:
            return [
                *(value_record(job, knob, tried) for tried in state.tried),
                result_record(job, knob, state, best),
            ]
        lines = [_table(knob, state, best)]
        if best is not None:
            lines.append(text.printable(best.line))
            if best.code:
                lines.append(f"to keep it: {text.printable(best.code)}")
        return lines

    status = run.complete(trials, report, results, "a larger --budget tries for longer")
    best = best_of(knob, trials.state)
    if status == 0 and options.keep and best is not None and best.value is not None:
        command = make_setting(knob, best.value)
        send(session, command)
        print_change(session, command)
    return status


def trials_of(
    session: Session,
    held: JobKnob,
    values: Sequence[int],
    bounds: tuple[int | None, int | None] = (None, None),
    budget_steps: int | None = None,
) -> Trials:
    """Return trials of these values, without any: of some within bounds. CommandError: there are none."""
    try:
        values = values or values_to_try(held.knob, *bounds, layout_of(held.knob, session.tick()))
        return try_values(session, held, values, budget_steps=budget_steps)
    except ValueError as error:
        raise CommandError(str(error), 1 if held.refusal or held.differs else 2) from error


def _table(knob: Knob, state: TrialsState, best: Best | None) -> str:
    table = Table([knob.name, "step", "difference", "trials", ""], left={""})
    table.add(present_words(knob), text.duration(state.present_ns), "", "", "present")
    for tried in state.tried:
        is_best = best is not None and best.value == tried.candidate.key
        effect, present_ns = tried.effect, state.present_ns
        # Scaled to the present value's mean over all trials.
        step_ns = None if effect is None or present_ns is None else present_ns * (1 + effect.centre)
        table.add(
            tried.candidate.name,
            text.duration(step_ns),
            difference_words(tried.effect),
            str(len(tried.pairs)),
            "best" if is_best else verdict(tried),
        )
    return table.render()


def _trial_record(job: str | None, knob: Knob, tried: Tried) -> TuneTrialRecord:
    value, pair = tried.candidate.key, tried.pairs[-1]
    return TuneTrialRecord(job, knob.name, value, round(pair.tried_ns), round(pair.present_ns))


def value_record(job: str | None, knob: Knob, tried: Tried) -> TuneValueRecord:
    value, trials = tried.candidate.key, len(tried.pairs)
    found = interval(tried.effect)
    return TuneValueRecord(job, knob.name, value, trials, tried.steps, *found, verdict(tried))


def result_record(job: str | None, knob: Knob, state: TrialsState, best: Best | None) -> TuneResultRecord:
    difference, low, high = interval(best.effect if best is not None else None)
    return TuneResultRecord(
        job=job,
        knob=knob.name,
        present=knob.value_text,
        present_step_ns=round(state.present_ns) if state.present_ns is not None else None,
        best=best.value if best is not None else None,
        difference=difference,
        difference_low=low,
        difference_high=high,
        rivals=list(best.rivals) if best is not None else None,
        confidence=CONFIDENCE,
        steps_spent=state.spent_steps,
        ended=state.why,
        line=best.line if best is not None else None,
        code=best.code if best is not None else None,
    )
