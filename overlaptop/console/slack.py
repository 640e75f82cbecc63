"""The work of ``overlaptop slack``: delay each rank in turn, and print how much the step grows."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from overlaptop import text
from overlaptop.console import CommandError, print_data, print_message
from overlaptop.console.hosts import Hosts
from overlaptop.console.jobs import join
from overlaptop.console.table import Table
from overlaptop.console.trials import TrialRun, print_refusals, progress_words, shares
from overlaptop.trials.effect import CONFIDENCE
from overlaptop.trials.runner import TrialsState, Tried
from overlaptop.trials.slack import (
    delay_ranks,
    least_cost_ns,
    refusal,
    slope_words,
    usual_delay_ns,
    usual_step_ns,
    verdict,
)
from overlaptop.wire.commands import PLACES


@dataclass(frozen=True, slots=True)
class SlackRequest:
    """Whom to delay, and how."""

    ranks: tuple[int, ...] = ()
    """Empty: all."""
    delay_ns: int | None = None
    delay_share: float | None = None
    """Of the step; both None: as `usual_delay_ns` has it."""
    place: int = 0
    budget_steps: int | None = None
    as_json: bool = False


def run(key: str | None, request: SlackRequest, hosts: Hosts | None = None) -> int:
    """Delay ranks of the job called `key`, or of the only one."""
    with closing(join(key, hosts)) as session:
        runs = TrialRun(session)
        snapshot = runs.await_steps()
        if why := refusal(snapshot):
            raise CommandError(why)
        step_ns = usual_step_ns(snapshot)
        delay_ns = request.delay_ns or usual_delay_ns(snapshot)
        if request.delay_share is not None:
            delay_ns = max(1, round(request.delay_share * step_ns))
        there_are = tuple(view.rank for view in snapshot.ranks)
        ranks = request.ranks or there_are
        if missing := sorted(set(ranks) - set(there_are)):
            raise CommandError(f"there is no {text.named_ranks(missing)}", 2)
        try:
            trials = delay_ranks(session, ranks, delay_ns, request.place, budget_steps=request.budget_steps)
        except ValueError as error:
            raise CommandError(str(error), 2) from error
        place = PLACES[request.place]
        print_message(
            f"delays the {place} of {text.named_ranks(sorted(ranks))} in turn by {text.duration(delay_ns)} "
            f"a step: costs the job {text.duration(least_cost_ns(len(ranks), delay_ns, step_ns))} or more"
        )

        def report(tried: Tried, state: TrialsState) -> None:
            if request.as_json:
                print_data(_trial_record(session.job_key, tried, place))
            print_message(f"{progress_words(tried, state)}: {slope_words(tried.effect)}")

        interrupted = runs.run(trials, report)
        state = trials.state
        _print(session.job_key, state, delay_ns, place, as_json=request.as_json)
        if interrupted:
            return 130
        if state.failed:
            raise CommandError(state.why)
        if state.why:
            print_message(f"{state.why}: a larger --budget or --delay tells more")
        return 0


def _print(job: str | None, state: TrialsState, delay_ns: int, place: str, *, as_json: bool) -> None:
    print_refusals(state)
    if state.present_ns is None:
        print_message("nothing was measured yet")
    elif as_json:
        for tried in state.tried:
            print_data(_rank_record(job, tried, delay_ns, place))
    else:
        table = Table(["rank", "place", "slope", "trials", ""], left={"place", ""})
        for tried in state.tried:
            rank, trials = str(tried.candidate.key), str(len(tried.pairs))
            table.add(rank, place, slope_words(tried.effect), trials, verdict(tried))
        print_data(table.render())


def _trial_record(job: str | None, tried: Tried, place: str) -> dict[str, object]:
    pair = tried.pairs[-1]
    return {
        "type": "trial",
        "job": job,
        "rank": tried.candidate.key,
        "place": place,
        "delay_ns": pair.delay_ns,
        "tried_ns": round(pair.tried_ns),
        "present_ns": round(pair.present_ns),
    }


def _rank_record(job: str | None, tried: Tried, delay_ns: int, place: str) -> dict[str, object]:
    return {
        "type": "rank",
        "job": job,
        "rank": tried.candidate.key,
        "place": place,
        "delay_ns": delay_ns,
        "trials": len(tried.pairs),
        "steps": tried.steps,
        **shares(tried.effect, "slope"),
        "confidence": CONFIDENCE,
        "verdict": verdict(tried),
    }
