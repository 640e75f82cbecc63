"""How soon the dashboard names the slow rank, the cause and the line of the script, in jobs as users write.

    python benchmarks/answers.py [--jobs trainer,ddp] [--faults dataset,lock] [--shares 0.5]
    python benchmarks/answers.py --healthy 120

Each job of `jobs/answers/` is started once, with two ranks. Rank 1 is made slow in one way after the other
(`jobs/answers/faulty.py`), while this reads the job as a dashboard does, four times a second. What was on
the screen before a fault and stays there is no answer to it. stderr gets each change of the screen.

"cpu" costs what it costs: all other faults about their share of a step. The column "step" tells.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pairs import UNKNOWN, number, options_of, print_head, print_row
from torchrun import job_folder, running, torchrun, why_it_failed

from overlaptop.findings.watch import FindingsWatch
from overlaptop.fleet.job_session import JobSession
from overlaptop.report.who_is_late import FirstLine, Kind
from overlaptop.tui.model.options import LOOK_EVERY_NS, LOOK_SOON_NS

SCRIPTS = Path(__file__).resolve().parent / "jobs" / "answers"
JOBS = {
    "trainer": "hf_trainer.py", "lightning": "lightning_module.py", "ddp": "plain_ddp.py",
    "fsdp2": "fsdp2_blocks.py",
}  # fmt: skip
RULES = {
    "dataset": "data_loading", "forward": "late_launch", "gc": "garbage_collection",
    "compute": "slow_compute", "lock": "late_launch", "cpu": "busy_cpu",
}  # fmt: skip
"""The rule that tells of each fault."""
SLOW_RANK = 1
PAINT_S = 0.25
SOON_S = 10.0
SETTLE_S = 10.0  # Of a healthy job, before what it raises counts
START_S = 240.0  # For the first step, and for the usual ones
HEADINGS = (
    "job", "fault", "share", "step, ms", "named after, s", "line of the script", "other rules before",
    "in first line after, s", "changes of first line",
)  # fmt: skip


class Look(NamedTuple):
    """The screen at one moment."""

    at_ns: int
    lines: Mapping[tuple[str, tuple[int, ...]], str]
    """Findings by rule and ranks, each with its line of the script."""
    first: FirstLine | None
    gains_ns: Mapping[tuple[str, tuple[int, ...]], int | None]  # What the same findings promise

    @property
    def key(self) -> object:
        """What the first line says, without its figures."""
        return self.first and self.first.key


class Row(NamedTuple):
    """What came of one fault. ``is_line_right``: None if no line is to be named."""

    cells: tuple[str, ...]
    is_soon: bool
    is_line_right: bool | None


class Screen:
    """Reads a job as the dashboard does."""

    def __init__(self, session: JobSession) -> None:
        self._session = session
        self._watch = FindingsWatch(LOOK_EVERY_NS, LOOK_SOON_NS)
        self._watched: frozenset[int] = frozenset()

    def look(self) -> Look | None:
        """The present screen; None before the first step."""
        snapshot = self._session.tick()
        if (ranks := snapshot.compared) != self._watched:
            self._watched = ranks
            self._session.watch(ranks)
        if all(view.last is None for view in snapshot.ranks):
            return None
        self._watch.look(snapshot)
        found = self._watch.findings or ()
        lines = {(each.rule, each.ranks): each.line for each in found}
        gains_ns = {(each.rule, each.ranks): each.gain_ns for each in found}
        return Look(time.time_ns(), lines, self._watch.line(snapshot), gains_ns)


def main() -> None:
    """Run the jobs, print a line for each fault as its job ends, then how many were named soon."""
    parser = options_of_faults(__doc__)
    parser.add_argument("--healthy", type=float, default=0.0, metavar="SECONDS", help="without any fault")
    options = parser.parse_args()
    jobs = options.jobs.split(",")
    if options.healthy:
        print_head("job", "findings", "first line in the end", "its changes")
        for job in jobs:
            print_row(job, *of_healthy(*watched(job, options)))
        return
    print_head(*HEADINGS)
    rows = []
    for job in jobs:
        looks, switches = watched(job, options)
        for on, off in zip(switches[:-1:2], switches[1::2], strict=False):
            rows.append(of_fault(job, looks, on, off))
            print_row(*rows[-1].cells)
    lines = [row.is_line_right for row in rows if row.is_line_right is not None]
    print(f"\n{sum(row.is_soon for row in rows)} of {len(rows)} named within {SOON_S:g} s; ", end="")
    print(f"{sum(lines)} of {len(lines)} lines of the script")


def options_of_faults(text: str | None) -> argparse.ArgumentParser:
    """A parser of the options that `watched` reads."""
    parser = options_of(text)
    parser.add_argument("--jobs", default=",".join(JOBS), help="default: %(default)s")
    parser.add_argument("--faults", default=",".join(RULES), help=f"of {', '.join(RULES)}")
    parser.add_argument("--shares", default="0.2,0.5", help="of a step, default: %(default)s")
    parser.add_argument("--on-s", type=float, default=14.0)
    parser.add_argument("--off-s", type=float, default=48.0, help="until agents measure a burst again")
    return parser


def watched(job: str, options: argparse.Namespace) -> tuple[list[Look], list[dict[str, Any]]]:
    """Run a job; returns what was on the screen, and what rank 1 wrote when it switched faults."""
    shares, faults = options.shares.split(","), options.faults.split(",")
    plan = [] if options.healthy else [f"{fault}:{share}" for share in shares for fault in faults]
    with job_folder() as folder:
        log, switches = folder / "log", folder / "switches"
        environment = os.environ | {
            "ANSWERS_PLAN": " ".join(plan), "ANSWERS_LOG": str(switches), "PYTHONUNBUFFERED": "1",
            "ANSWERS_ON_S": str(options.on_s), "ANSWERS_OFF_S": str(options.off_s),
        }  # fmt: skip
        for_all_s = options.healthy or len(plan) * (options.on_s + options.off_s) + START_S
        command = torchrun(2, SCRIPTS / JOBS[job])
        with (
            log.open("wb") as output,
            running(command, env=environment, stdout=output, stderr=output) as process,
        ):
            looks = list(_looks(job, process, switches, for_all_s, len(plan)))
            has_failed = process.poll() is not None
        if has_failed or not looks:
            print(f"{job}: {why_it_failed(log.read_text(errors='replace'))}", file=sys.stderr)
        return looks, _read(switches)


def _looks(
    job: str, process: subprocess.Popen[bytes], switches: Path, for_all_s: float, faults: int
) -> Iterator[Look]:
    """The screens until the last fault is over."""
    before: Look | None = None
    until_s = time.monotonic() + START_S
    with closing(JobSession()) as session:
        screen = Screen(session)
        while process.poll() is None and time.monotonic() < until_s:
            if (look := screen.look()) is not None:
                if before is None:
                    until_s = time.monotonic() + for_all_s
                if before is None or (look.key, look.lines) != (before.key, before.lines):
                    found = " ".join(f"{rule}{list(ranks)}" for rule, ranks in look.lines)
                    words = look.first.because.words if look.first else UNKNOWN
                    print(time.strftime("%T"), f"{job}: {words} | {found}", file=sys.stderr, flush=True)
                before = look
                yield look
            if faults and len(_read(switches)) > 2 * faults:
                return
            time.sleep(PAINT_S)


def _read(switches: Path) -> list[dict[str, Any]]:
    lines = switches.read_text().splitlines() if switches.exists() else []
    return [json.loads(line) for line in lines]


def of_healthy(looks: Sequence[Look], _: object) -> tuple[str, ...]:
    """Findings, first line and its changes, after SETTLE_S."""
    late = [each for each in looks if each.at_ns >= looks[0].at_ns + SETTLE_S * 1e9]
    rules = sorted({rule for look in late for rule, _ in look.lines})
    words = late[-1].first.because.words if late and late[-1].first else UNKNOWN
    return ", ".join(rules) or UNKNOWN, words, str(_changes(late))


def of_fault(job: str, looks: Sequence[Look], on: Mapping[str, Any], off: Mapping[str, Any]) -> Row:
    """What was told of a fault while it was on."""
    before = [each for each in looks if each.at_ns < on["at_ns"]][-1:]
    during = [each for each in looks if on["at_ns"] <= each.at_ns < off["at_ns"]]
    right = rule, _ = RULES[on["fault"]], (SLOW_RANK,)
    stale, stale_key = (set(before[0].lines), before[0].key) if before else (set(), None)
    named_s = first_s = None
    line, others = "", []
    answers = (Kind.LATE, rule, SLOW_RANK), (Kind.FINDING, rule, None)
    for look in during:
        passed_s = (look.at_ns - on["at_ns"]) / 1e9
        stale &= set(look.lines)
        stale_key = stale_key if look.key == stale_key else None
        if named_s is None:
            others += [each[0] for each in look.lines if each not in stale | {right}]
            if right in look.lines and right not in stale:
                named_s = passed_s
        if named_s is not None:
            line = line or look.lines.get(right, "")
        if first_s is None and look.key in answers and look.key != stale_key:
            first_s = passed_s
    file, _, function = on["at"].partition(" ")
    is_right = f"{file}:" in line and line.endswith(f" in {function}") if file else None
    told_line = line.rpartition("/")[2] + " (wrong)" * (bool(line) and is_right is False)
    cells = (
        job, on["fault"], f"{on['share']:.0%}", f"{on['step_ms']:.0f} → {off['step_ms']:.0f}",
        number(named_s), told_line or UNKNOWN, ", ".join(dict.fromkeys(others)) or UNKNOWN,
        number(first_s), str(_changes([*before, *during])),
    )  # fmt: skip
    return Row(cells, named_s is not None and named_s <= SOON_S, is_right)


def _changes(looks: Sequence[Look]) -> int:
    """How often the first line changed."""
    return sum(later.key != earlier.key for earlier, later in pairwise(looks))


if __name__ == "__main__":
    main()
