"""``overlaptop tune``: try values of a setting on a running job."""

import argparse
import re
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from overlaptop import text
from overlaptop.commands.arguments import (
    add_flag,
    add_hosts,
    add_job,
    add_value,
    hosts_of,
    positive,
    whole_numbers,
)
from overlaptop.commands.following import send
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, print_message, refusing, table
from overlaptop.commands.set import await_knobs, knob_of, print_change
from overlaptop.commands.trials import Experiment, await_steps, interval
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.session import Session
from overlaptop.launch.launcher import Launcher, of_workload, place
from overlaptop.launch.request import LaunchError
from overlaptop.records import Record, TuneResultRecord, TuneTrialRecord, TuneValueRecord
from overlaptop.report.knobs import present_words
from overlaptop.trials.effect import CONFIDENCE
from overlaptop.trials.runner import TrialsState, Tried
from overlaptop.trials.settings import best_of, difference_words, try_values, verdict
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
    add = partial(add_value, parser)
    add("script", "SCRIPT", "start this script (default: a running job)", nargs="?")
    add("--knob", "NAME", "the setting (default: %(default)s)", default="bucket_cap_mb")
    what = parser.add_mutually_exclusive_group()
    values = "try these (default: up to six around the present value, by factors of two)"
    add_value(what, "--values", "V,V", values, type=whole_numbers, default=())
    bounds = "try up to seven values from A to B"
    add_value(what, "--range", "A:B", bounds, type=_range, default=(None, None))
    budget = "take STEPS steps at most (default: for each value 1,000, or 90 s if longer)"
    add("--budget", "STEPS", budget, type=positive)
    add_job(parser, "the running job, as --list names it")
    add_flag(parser, "--keep", "set the best value on the running job")
    add("--nproc", "N", "SCRIPT's processes (default: one a GPU, else 2)", type=positive)
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
        with join(options.job, hosts) as session:
            return _tune(session, options)
    if hosts is not None:
        raise CommandError("SCRIPT is started here: give no host with it", 2)
    with refusing(LaunchError, status=1):
        launcher = _launcher(script, options.script_words, options.nproc)
        shown = Path(script).resolve() if Path(script).is_file() else script
        print_message(f"{shown} on {launcher.placement.describe}")
        with launcher:
            launcher.start()
            with closing(JobSession(JobSelector(matches=launcher.owns))) as session:
                return _tune(session, options, launcher)


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
    with refusing(OptionsError, where=f"{workload.name}: "):
        return of_workload(workload, options, nproc)


def _tune(session: Session, options: argparse.Namespace, launcher: Launcher | None = None) -> int:
    experiment, knob = experiment_of(
        session, options.knob, options.values, options.range, options.budget, launcher
    )
    status = experiment.complete("a larger --budget tries for longer", as_json=options.json)
    best = best_of(knob, experiment.trials.state)
    if status == 0 and options.keep and best is not None and best.value is not None:
        command = make_setting(knob, best.value)
        send(session, command)
        print_change(session, command)
    return status


def experiment_of(
    session: Session,
    name: str,
    values: Sequence[int],
    bounds: tuple[int | None, int | None] = (None, None),
    budget_steps: int | None = None,
    launcher: Launcher | None = None,
) -> tuple[Experiment, Knob]:
    """Return trials of these values of a knob, without any: of some within bounds; and the knob.
    CommandError: there are none.
    """
    await_steps(session, launcher)
    held = knob_of(await_knobs(session), name)
    knob, job = held.knob, session.job_key
    with refusing(ValueError, status=1 if held.refusal or held.differs else 2):
        values = values or values_to_try(knob, *bounds, layout_of(knob, session.tick()))
        trials = try_values(session, held, values, budget_steps=budget_steps)

    def trial_record(tried: Tried) -> Record:
        value, pair = tried.candidate.key, tried.pairs[-1]
        return TuneTrialRecord(job, knob.name, value, round(pair.tried_ns), round(pair.present_ns))

    def value_record(tried: Tried) -> Record:
        value, count, found = tried.candidate.key, len(tried.pairs), interval(tried.effect)
        return TuneValueRecord(job, knob.name, value, count, tried.steps, *found, verdict(tried))

    def records(state: TrialsState) -> list[Record]:
        return [*map(value_record, state.tried), _result_record(job, knob, state)]

    page = partial(_page, knob)
    return Experiment(session, trials, difference_words, trial_record, records, page, launcher), knob


def _page(knob: Knob, state: TrialsState) -> str:
    best, present_ns = best_of(knob, state), state.present_ns
    rows = [[present_words(knob), text.duration(present_ns), "", "", "present"]]
    for tried in state.tried:
        effect, count = tried.effect, str(len(tried.pairs))
        # Scaled to the present value's mean over all trials.
        step_ns = None if effect is None or present_ns is None else present_ns * (1 + effect.centre)
        is_best = best is not None and best.value == tried.candidate.key
        found = "best" if is_best else verdict(tried)
        rows.append([tried.candidate.name, text.duration(step_ns), difference_words(effect), count, found])
    lines = [table([knob.name, "step", "difference", "trials", ""], rows, left={""})]
    if best is not None:
        lines.append(text.printable(best.line))
        if best.code:
            lines.append(f"to keep it: {text.printable(best.code)}")
    return "\n".join(lines)


def _result_record(job: str | None, knob: Knob, state: TrialsState) -> TuneResultRecord:
    best = best_of(knob, state)
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
