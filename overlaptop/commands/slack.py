"""``overlaptop slack``: which ranks are on the critical path of a running job."""

import argparse
import re
from collections.abc import Callable
from functools import partial

from overlaptop import text
from overlaptop.commands.arguments import (
    add_flag,
    add_hosts,
    add_value,
    hosts_of,
    job_key,
    positive,
    whole_numbers,
)
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, print_message, refusing, table
from overlaptop.commands.trials import Experiment, await_steps, interval
from overlaptop.fleet.session import Session
from overlaptop.records import Record, SlackRankRecord, SlackTrialRecord
from overlaptop.trials.effect import CONFIDENCE
from overlaptop.trials.runner import TrialsState, Tried
from overlaptop.trials.slack import (
    cost_words,
    delay_ranks,
    refusal,
    slope_words,
    usual_delay_ns,
    usual_step_ns,
    verdict,
)
from overlaptop.wire.commands import GPU, HOST, PLACES

DESCRIPTION = """\
Measure which ranks set the length of the step. Each rank in turn is delayed by a known time in each step of
a trial, and the slope of the step's length over the delay is printed. 1: the rank is on the critical path,
and making it faster makes the job faster. 0: it has slack: the job waits for something else anyway.

  overlaptop slack                          each rank, by 2 % of the step or more
  overlaptop slack --ranks 0,3 --delay 5ms

The job must have been started with --control, or be a bundled workload. It is slower meanwhile, and the
first line says by how much; its results stay the same to the bit. A trial ends by itself, so Ctrl-C, or the
death of this command, leaves nothing to undo.
"""
EPILOG = """\
stdout gets a table: rank, place, slope with its 95 % interval, number of trials, and a verdict: critical,
slack, partly critical, not known. Trials of a rank end once its interval reaches no farther than 0.2 to
each side, or when the budget is used up. stderr gets the progress. With --json: a record for each trial
("trial") and each rank ("rank"). Times are ns, null is unknown.
exit status: 0 when all is known or the budget is used up, 1 when the trials ended early (the job ended or
refused, somebody else changed it), 2 for a usage error, 130 after Ctrl-C.
"""

Delay = Callable[[float], float]  # Returns the delay of each step in ns, for steps of this length


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_value, parser)
    add("job", "JOB", "as --list names it (default: the only one)", nargs="?", type=job_key)
    delay = "of each step: 5ms, 300us, or 2%% of it (default: 2%%, or three times its jitter if more)"
    add("--delay", "TIME", delay, type=_delay)
    add("--ranks", "R,R", "delay only these (default: all)", type=whole_numbers, default=())
    place = "host: the training thread sleeps as a step begins; gpu: a kernel spins on the current stream"
    parser.add_argument("--place", choices=("host", "gpu"), default="host", help=place)
    budget = "take STEPS steps at most (default: for each rank 1,000, or 90 s if longer)"
    add("--budget", "STEPS", budget, type=positive)
    add_flag(parser, "--json", "print records, not a table")
    add_hosts(parser)


def run(options: argparse.Namespace) -> int:
    place = GPU if options.place == "gpu" else HOST
    with join(options.job, hosts_of(options)) as session:
        experiment = experiment_of(session, options.ranks, options.delay, place, options.budget)
        return experiment.complete("try a larger --budget or --delay", as_json=options.json)


def experiment_of(
    session: Session,
    ranks: tuple[int, ...],
    delay: Delay | None,
    place: int,
    budget_steps: int | None,
) -> Experiment:
    """Return the trials of these ranks, empty: of all, and print what they cost."""
    snapshot = await_steps(session)
    if why := refusal(snapshot):
        raise CommandError(why)
    step_ns = usual_step_ns(snapshot)
    delay_ns = usual_delay_ns(snapshot) if delay is None else max(1, round(delay(step_ns)))
    there_are = tuple(view.rank for view in snapshot.ranks)
    ranks = ranks or there_are
    if missing := sorted(set(ranks) - set(there_are)):
        raise CommandError(f"there is no {text.named_ranks(missing)}", 2)
    with refusing(ValueError):
        trials = delay_ranks(session, ranks, delay_ns, place, budget_steps=budget_steps)
    job, name = session.job_key, PLACES[place]
    print_message(
        f"delays the {name} of {text.named_ranks(sorted(ranks))} in turn by "
        f"{text.duration(delay_ns)} a step: {cost_words(len(ranks), delay_ns, step_ns)}"
    )

    def trial_record(tried: Tried) -> Record:
        rank, pair = tried.candidate.key, tried.pairs[-1]
        return SlackTrialRecord(
            job, rank, name, pair.delay_ns, round(pair.tried_ns), round(pair.present_ns)
        )

    def rank_record(tried: Tried) -> Record:
        rank, count, found = tried.candidate.key, len(tried.pairs), interval(tried.effect)
        return SlackRankRecord(
            job, rank, name, delay_ns, count, tried.steps, *found, CONFIDENCE, verdict(tried)
        )

    def records(state: TrialsState) -> list[Record]:
        return list(map(rank_record, state.tried))

    return Experiment(session, trials, slope_words, trial_record, records, partial(_page, name))


def _page(place: str, state: TrialsState) -> str:
    rows = [
        [str(each.candidate.key), place, slope_words(each.effect), str(len(each.pairs)), verdict(each)]
        for each in state.tried
    ]
    return table(["rank", "place", "slope", "trials", ""], rows, left={"place", ""})


def _delay(words: str) -> Delay:
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(%|us|ms|s)", words)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"must be a time or a share, as 5ms or 2%, not {words!r}")
    amount = float(found[1]) * {"%": 0.01, "us": 1e3, "ms": 1e6, "s": 1e9}[found[2]]
    return lambda step_ns: amount * step_ns if found[2] == "%" else amount
