"""The search for the best bucket size against an exhaustive grid, in one job, measured the same way.

    python benchmarks/search.py --rate 1gbit --rate 200mbit [--grid 1,2,3,...] [--rounds 6] [-- ddp options]
    python benchmarks/search.py --rate none --grid 1,2,5,10,25,50,100,200,400

With a rate (as tc has it; needs root, iproute2 and two network namespaces, which are taken down again) the
two ranks of the bundled workload ddp run in a namespace each, with a token bucket on either end of the veth
pair between them. With ``none`` it runs as ``overlaptop demo ddp`` would: on the GPUs that are there.

The grid's rounds come half before and half after the search, which may spend a third of their steps. In
the end the grid's best and the search's choice are measured against each other once more, in as many
rounds: the difference is the regret.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial

from tables import UNKNOWN, print_head, print_row
from torchrun import job_folder
from two_hosts import job_across, two_hosts

from overlaptop import text
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.launch.launcher import of_workload, place
from overlaptop.stats.interleaved import InterleavedWindows, SettingWindow
from overlaptop.tuning.search import SearchOptions, ValueSearch
from overlaptop.tuning.space import Space
from overlaptop.tuning.state import SearchState
from overlaptop.tuning.tuner import Tuner
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob
from overlaptop.workloads import catalog

TICK_S = 0.05
START_S = 120.0
WARMUP_STEPS = 20

MakeSearch = Callable[[Space, int, SearchOptions], ValueSearch]


class Grid(ValueSearch):
    """All values of a list in so many rounds, whatever comes of them."""

    def __init__(
        self, space: Space, before: int, options: SearchOptions, values: tuple[int, ...], rounds: int
    ) -> None:
        self.values, self.rounds = values, rounds
        super().__init__(space, before, options)

    def _first_round(self) -> list[int]:
        rest = [value for value in self.values if value != self.before]
        # Begun with the present one where that belongs to the list: it needs no switch.
        return [self.before, *rest] if self.before in self.values else rest

    def enough(self, steps_ns: Sequence[float]) -> bool:
        """No window is cut short."""
        return len(steps_ns) >= self.window_steps

    @property
    def budget_steps(self) -> int:
        """No end but that of the rounds."""
        return 1_000_000

    def _next_round(self) -> None:
        if self.round + 1 >= self.rounds:
            self._known = self.over = True
            return
        self._queue, self._measured = self._measured[::-1], []
        self.round += 1


def compared(states: Sequence[SearchState]) -> InterleavedWindows:
    """All windows of these together."""
    return InterleavedWindows(
        SettingWindow(each.value, tuple(map(float, each.steps_ns)))
        for state in states
        for each in state.windows
    )


def compare(session: JobSession, options: argparse.Namespace) -> None:
    """Measure the grid and the search on a job that runs, and print the table."""
    knob = wait_for_knob(session)
    given = SearchOptions(window_steps=options.window)
    values = options.grid

    def run(name: str, make: MakeSearch, options: SearchOptions = given) -> SearchState:
        tuner = Tuner(session, knob, min(values), max(values), options=options, make_search=make)
        reported = 0
        while not tuner.over:
            tuner.tick(session.tick())
            for window in tuner.state.windows[reported:]:
                reported += 1
                mean = text.duration(sum(window.steps_ns) / len(window.steps_ns))
                say(f"{name}, round {window.round + 1}: {window.value} MiB, {mean} a step")
            time.sleep(TICK_S)
        if tuner.state.failed:
            raise SystemExit(f"{name}: {tuner.state.why}")
        return tuner.state

    half = options.rounds // 2
    grid = [run("grid", partial(Grid, values=values, rounds=half))]
    budget_steps = options.budget or grid[0].steps_spent * options.rounds // half // 3
    found = run("search", ValueSearch, replace(given, budget_steps=budget_steps))
    grid.append(run("grid", partial(Grid, values=values, rounds=options.rounds - half)))
    assert found.result is not None
    choice, measured = found.result.found.value, compared(grid)
    print_values(measured, found)
    print(f"script's own: {knob.value_text} MiB; search: {found.result.line}")
    best = min(values, key=lambda value: measured.estimate(value).centre)
    regret = "the same"
    if choice != best:
        referee = run("referee", partial(Grid, values=(best, choice), rounds=options.rounds))
        longer = compared([referee]).difference(best, choice)
        change, low, high = (100 * ns / longer.base for ns in (longer.change, longer.low, longer.high))
        regret = f"{change:+.2f} % ({low:+.2f} to {high:+.2f} %)"
    print(f"grid's best: {best} MiB; search's choice: {choice} MiB; regret: {regret}")
    steps, windows = (sum(each.steps_spent for each in grid), sum(len(each.windows) for each in grid))
    print(
        f"steps: grid {steps} ({windows} windows), search {found.steps_spent} "
        f"({len(found.windows)} windows): {found.steps_spent / steps:.3f} of the grid's",
        flush=True,
    )


def print_values(grid: InterleavedWindows, found: SearchState) -> None:
    """The table: a row for each value of the grid, and of the search."""
    points = {point.value: point for point in found.points}
    print_head("MiB", "grid", "95 % interval", "search", "windows", "")
    for value in sorted({*grid.settings, *points}):
        cells = [UNKNOWN, UNKNOWN, UNKNOWN, "0", "not measured"]
        if value in grid.settings:
            measured = grid.estimate(value)
            interval = f"{text.duration(measured.low)} .. {text.duration(measured.high)}"
            cells[:2] = text.duration(measured.centre), interval
        if point := points.get(value):
            cells[2:] = text.duration(point.step_ns), str(point.windows), point.state.value
        print_row(str(value), *cells)


def wait_for_knob(session: JobSession) -> Knob:
    """The bucket size, once the job has warmed up."""
    give_up_s = time.monotonic() + START_S
    while time.monotonic() < give_up_s:
        snapshot = session.tick()
        steps = [view.last.step if view.last is not None else 0 for view in snapshot.ranks]
        held = snapshot.knob(BUCKET_CAP_MB)
        if held is not None and steps and min(steps) >= WARMUP_STEPS:
            if held.refusal:
                raise SystemExit(f"the bucket size cannot be changed: {held.refusal}")
            return held.knob
        time.sleep(TICK_S)
    raise SystemExit(f"no job with a bucket size after {START_S:.0f} s")


def say(message: str) -> None:
    """Progress."""
    print(message, file=sys.stderr, flush=True)


def run_at(rate: str, options: argparse.Namespace) -> None:
    """One job at one rate."""
    print(f"== {rate}: ddp {' '.join(options.words)}", flush=True)
    with ExitStack() as stack:
        folder = stack.enter_context(job_folder())
        log = folder / "log"
        if rate == "none":
            launcher = stack.enter_context(of_workload(catalog.DDP, options.words, place(options.nproc)))
            launcher.start()
        else:
            names = stack.enter_context(two_hosts(rate))
            stack.enter_context(job_across(names, [str(catalog.DDP.path), *options.words], log))
        session = stack.enter_context(closing(JobSession(JobSelector())))
        try:
            compare(session, options)
        except SystemExit:
            with suppress(OSError):
                say(log.read_text(errors="replace")[-2000:])
            raise


def main() -> None:
    """Compare at each rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", action="append", help="1gbit, 200mbit, ... or none (default: none)")
    parser.add_argument(
        "--grid",
        type=lambda told: tuple(map(int, told.split(","))),
        default=(1, 2, 3, 4, 5, 6, 8, 11, 16),
        help="MiB (default: 1,2,3,4,5,6,8,11,16; the small ddp has 15 MB of gradients)",
    )
    parser.add_argument("--rounds", type=int, default=6, help="of the grid, 2 or more (default: 6)")
    parser.add_argument("--window", type=int, default=12, metavar="STEPS")
    parser.add_argument(
        "--budget", type=int, metavar="STEPS", help="of the search (default: a third of the grid's)"
    )
    parser.add_argument("--nproc", type=int, help="with --rate none")
    parser.add_argument("words", nargs="*", metavar="-- ddp options")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more: half of them come after the search")
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))  # what was set up is taken down
    for rate in options.rate or ["none"]:
        run_at(rate, options)


if __name__ == "__main__":
    main()
