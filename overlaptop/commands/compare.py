"""``overlaptop compare A B``: the differences between two runs, beyond noise."""

import argparse
import math
import re

from overlaptop import text
from overlaptop.commands.arguments import add_ascii, add_flag, add_value
from overlaptop.commands.output import CommandError, print_data, print_message, print_page, refusing, table
from overlaptop.commands.report import report_of
from overlaptop.jobs.folder import JobFolderError
from overlaptop.records import DifferenceRecord
from overlaptop.runs.compare import bucket_sizes_differ, differences, unlike

DESCRIPTION = """\
Compare two runs: each figure with its spread, and by how much B differs from A if that is more than
noise (~ where it is not): of the job, then by operation, process group, bucket and rank.
"""
EPILOG = """\
A and B are what `overlaptop report` takes: recordings, FILE@10:05-10:10 for a part of one, traces, reports,
jobs. Runs of unlike work are refused: another number of ranks, other bytes or operations in a step. If only
bucket sizes differ, all but the buckets is compared.

A run is cut into 7, 14 or 28 blocks of consecutive steps. A difference is more than noise where a
signed-rank test of the blocks' medians says so, with the errors of all figures together below 5 %, and
where it is 1 % or more, and 0.2 % of the step: of overlap, 1 point. What differs by chance between two
starts of one job is in no block: compare windows of one run, or several runs, where that matters.
exit status: 0; 1 where --fail-if holds; 2 for a usage error, unlike work, and a file that cannot be read.
"""
_ADVICE = "compare runs of the same model, batch size and number of ranks"
_BUCKET = "bucket "
_CONDITION = re.compile(r"(.+?)\s*([<>])\s*(-?[0-9]{1,6}(?:\.[0-9]{1,6})?)\s*%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_value(parser, "a", "A", "the run before")
    add_value(parser, "b", "B", "the run after")
    add_flag(parser, "--json", "print records, not a table")
    add_flag(parser, "--all", "list also what does not differ, of each rank")
    fail_if = "end with status 1 where a figure differs by more: 'step>3%%', 'overlap<-5%%' (repeat it)"
    add_value(parser, "--fail-if", "CONDITION", fail_if, action="append", default=[], type=_condition)
    add_ascii(parser)


def run(options: argparse.Namespace) -> int:
    found, note = compared(options.a, options.b)
    if note:
        print_message(note)
    names = {each.name for each in found}
    for name, _, _ in options.fail_if:
        if name not in names:
            raise CommandError(f"--fail-if: no figure {name!r}; there are: {', '.join(sorted(names))}", 2)
    if options.json:
        print_data(*found)
    else:
        print_page(_page(found, every=options.all), ascii_only=options.ascii)
    failed = [each for each in found for condition in options.fail_if if _holds(each, *condition)]
    for each in failed:
        by = "from 0" if each.difference is None else f"by {_change(each.difference, each.unit)}"
        print_message(f"{each.name} differs {by}")
    not_judged = {each.name for each in found if not each.judged}
    for name, sign, limit in options.fail_if:
        if name in not_judged:
            print_message(f"{name}: too few steps to judge --fail-if {name}{sign}{100 * limit:g}%")
    return 1 if failed else 0


def compared(a: str, b: str) -> tuple[list[DifferenceRecord], str]:
    """Return the figures of two sources of `report`, and a note if some are left out. Raises CommandError
    with status 2 for unlike runs.
    """
    with refusing(CommandError, JobFolderError):  # status 1 is for --fail-if alone
        before, after = report_of(a), report_of(b)
    if why := unlike(before.work, after.work):
        raise CommandError(f"unlike work: {why}: {_ADVICE}", 2)
    figures, note = before.figures, ""
    if bucket_sizes_differ(before.work, after.work):
        note = "bucket sizes differ: buckets are not compared"
        figures = [each for each in figures if not each.name.startswith(_BUCKET)]
    found = differences(figures, after.figures)
    if not found:
        raise CommandError("the runs have no figure in common", 2)
    return found, note


def _page(found: list[DifferenceRecord], *, every: bool) -> str:
    """Return a row for each figure of the job, and for each other one that differs."""
    rows = []
    shown = [each for each in found if every or each.differs or " " not in each.name]
    for each in shown:
        interval = text.UNKNOWN
        if each.difference_low is not None and each.difference_high is not None:
            ends = each.difference_low, each.difference_high
            interval = " to ".join(_change(end, each.unit) for end in ends)
        values = (_value(value, each.unit) for value in (each.a, each.a_spread, each.b, each.b_spread))
        rows.append([each.name, *values, _verdict(each), interval])
    lines = [table(["figure", "A", "±", "B", "±", "difference", "interval"], rows, left={"figure"})]
    groups = "groups, buckets" if any(each.name.startswith(_BUCKET) for each in found) else "groups"
    rest = [each.judged for each in found if not (every or each.differs) and " " in each.name]
    for judged, verdict in ((True, "no difference"), (False, "not judged, too few steps")):
        if number := rest.count(judged):
            others = text.plural(number, "other figure")
            lines.append(f"{others} of operations, {groups} and ranks: {verdict}")
    return "\n".join(lines)


def _verdict(each: DifferenceRecord) -> str:
    if each.differs:
        return "from 0" if each.difference is None else _change(each.difference, each.unit)
    return "~" if each.judged else "too few steps"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return text.UNKNOWN
    return text.percent(value) if unit == "share" else text.duration(value)


def _change(difference: float, unit: str) -> str:
    return f"{difference * 100:+.1f} {'points' if unit == 'share' else '%'}"


def _holds(each: DifferenceRecord, name: str, sign: str, limit: float) -> bool:
    if each.name != name or not each.differs:
        return False
    difference = math.inf if each.difference is None else each.difference  # it was 0
    return difference > limit if sign == ">" else difference < limit


def _condition(words: str) -> tuple[str, str, float]:
    found = _CONDITION.fullmatch(words)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be as 'step>3%' or 'overlap<-5%', not {words!r}")
    return found[1], found[2], float(found[3]) / 100
