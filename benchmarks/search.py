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
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from two_hosts import job_across, two_hosts

from overlaptop import text
from overlaptop.console.table import Table
from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.launch.launcher import of_workload, place
from overlaptop.stats.interleaved import InterleavedWindows, SettingWindow
from overlaptop.tuning.search import SearchOptions, ValueSearch
from overlaptop.tuning.space import Space
from overlaptop.tuning.state import MeasuredWindow, SearchState
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


@dataclass(slots=True)
class Measurement:
    """Windows of one part of the measurement, in order."""

    windows: list[MeasuredWindow] = field(default_factory=list)
    steps: int = 0
    """All of them, with those between windows."""

    def add(self, state: SearchState) -> None:
        """Take what a Tuner measured."""
        self.windows += state.windows
        self.steps += state.steps_spent

    @property
    def compared(self) -> InterleavedWindows:
        """All windows together."""
        return InterleavedWindows(
            SettingWindow(each.value, tuple(map(float, each.steps_ns))) for each in self.windows
        )


def compare(session: JobSession, options: argparse.Namespace) -> None:
    """Measure the grid and the search on a job that runs, and print the table."""
    knob = wait_for_knob(session)
    given = SearchOptions(window_steps=options.window)
    values = options.grid
    grid, referee = Measurement(), Measurement()

    def exhaustive(values: tuple[int, ...], rounds: int) -> MakeSearch:
        return lambda space, before, options: Grid(space, before, options, values, rounds)

    def run(name: str, make: MakeSearch, options: SearchOptions = given) -> SearchState:
        tuner = Tuner(session, knob, min(values), max(values), options=options, make_search=make)
        reported = 0
        while not tuner.over:
            tuner.tick(session.tick())
            for window in tuner.state.windows[reported:]:
                reported += 1
                mean_ns = sum(window.steps_ns) / len(window.steps_ns)
                say(
                    f"{name}, round {window.round + 1}: {window.value} MiB, {text.duration(mean_ns)} a step"
                )
            time.sleep(TICK_S)
        if tuner.state.failed:
            raise SystemExit(f"{name}: {tuner.state.why}")
        return tuner.state

    half = options.rounds // 2
    grid.add(run("grid", exhaustive(values, half)))
    budget_steps = options.budget or grid.steps * options.rounds // half // 3
    found = run("search", ValueSearch, replace(given, budget_steps=budget_steps))
    grid.add(run("grid", exhaustive(values, options.rounds - half)))

    measured = grid.compared
    best = min(values, key=lambda value: measured.estimate(value).centre)
    assert found.result is not None
    choice = found.result.found.value
    if choice != best:
        referee.add(run("referee", exhaustive((best, choice), options.rounds)))
    report(knob, found, grid, best, referee)


def report(knob: Knob, found: SearchState, grid: Measurement, best: int, referee: Measurement) -> None:
    """The table, and what it comes to."""
    measured = grid.compared
    points = {point.value: point for point in found.points}
    rows = Table(
        ["MiB", "grid", "95 % interval", "search", "windows", ""],
        left={""},
    )
    for value in sorted({*measured.settings, *points}):
        point = points.get(value)
        in_grid = measured.estimate(value) if value in measured.settings else None
        cells = [str(value)]
        cells += (
            [
                text.duration(in_grid.centre),
                f"{text.duration(in_grid.low)} .. {text.duration(in_grid.high)}",
            ]
            if in_grid is not None
            else [text.UNKNOWN] * 2
        )
        if point is None:
            cells += [text.UNKNOWN, "0", "not measured"]
        else:
            cells += [text.duration(point.step_ns), str(point.windows), point.state.value]
        rows.add(*cells)
    print(rows.render())
    assert found.result is not None
    print(f"script's own: {knob.value_text} MiB; search: {found.result.line}")
    choice = found.result.found.value
    words = "the same"
    if choice != best:
        longer = referee.compared.difference(best, choice)
        words = (
            f"{100 * longer.change / longer.base:+.2f} % "
            f"({100 * longer.low / longer.base:+.2f} to {100 * longer.high / longer.base:+.2f} %)"
        )
    print(f"grid's best: {best} MiB; search's choice: {choice} MiB; regret: {words}")
    print(
        f"steps: grid {grid.steps} ({len(grid.windows)} windows), search {found.steps_spent} "
        f"({len(found.windows)} windows): {found.steps_spent / grid.steps:.3f} of the grid's"
    )
    sys.stdout.flush()


def wait_for_knob(session: JobSession) -> Knob:
    """The bucket size, once the job has warmed up."""
    give_up_s = time.monotonic() + START_S
    while time.monotonic() < give_up_s:
        snapshot = session.tick()
        steps = [view.last.step if view.last is not None else 0 for view in snapshot.ranks]
        held = next((each for each in snapshot.knobs if each.knob.name == BUCKET_CAP_MB), None)
        if held is not None and steps and min(steps) >= WARMUP_STEPS:
            if held.refusal:
                raise SystemExit(f"the bucket size cannot be changed: {held.refusal}")
            return held.knob
        time.sleep(TICK_S)
    raise SystemExit(f"no job with a bucket size after {START_S:.0f} s")


def say(message: str) -> None:
    """Progress."""
    print(message, file=sys.stderr, flush=True)


def run_at(rate: str, options: argparse.Namespace, words: Sequence[str]) -> None:
    """One job at one rate."""
    print(f"== {rate}: ddp {' '.join(words)}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ot-")))
        os.environ["OVERLAPTOP_DIR"] = str(folder / "jobs")
        (folder / "jobs").mkdir(mode=0o700)
        log = folder / "log"
        if rate == "none":
            workload = catalog.find("ddp")
            assert workload is not None
            launcher = stack.enter_context(of_workload(workload, words, place(options.nproc)))
            launcher.start()
        else:
            names = stack.enter_context(two_hosts(rate))
            workload = catalog.find("ddp")
            assert workload is not None
            stack.enter_context(job_across(names, [str(workload.path), *words], log))
        session = JobSession(JobSelector())
        stack.callback(session.close)
        try:
            compare(session, options)
        except SystemExit:
            with suppress(OSError):
                say(log.read_text(errors="replace")[-2000:])
            raise


def leave(signum: int, _frame: FrameType | None) -> NoReturn:
    """Take down what was set up."""
    raise SystemExit(128 + signum)


def main() -> None:
    """Compare at each rate."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
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
    options = parser.parse_args(words[:cut])
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more: half of them come after the search")
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    for rate in options.rate or ["none"]:
        run_at(rate, options, words[cut + 1 :])


if __name__ == "__main__":
    main()
