"""One self-contained HTML page: summary, findings, a timeline to zoom, tables."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from statistics import fmean

import numpy as np

from overlaptop import text
from overlaptop.export.timeline import JobTimeline, RankTimeline
from overlaptop.fleet.records import BOUNDS
from overlaptop.records import FindingRecord, StepRecord
from overlaptop.timeline import ratios
from overlaptop.timeline.arrivals import lateness
from overlaptop.timeline.averages import mean_of_known
from overlaptop.timeline.spans import Spans, clip, flatten

MAX_SPANS = 200_000
"""Maximum spans of all ranks: a phone still scrolls them smoothly, and the page has at most some 4 MB."""
MAX_DRAWN_RANKS = 64  # A higher canvas than that of 64 ranks exceeds the limit of a phone's browser
MAX_ROWS = 64
_FIGURES = {
    "step": "step_ns",
    "overlap": "overlap",
    "exposed": "exposed_ns",
    "waiting": "exposed_wait_ns",
    "transfer": "exposed_transfer_ns",
    "idle": "idle_ns",
}
"""Columns of the tables of ranks and steps, each with its field of the step record."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The sentences and figures of the page, as other commands print them."""

    title: str
    sentence: str  # The first line. Empty: not known.
    window: str  # The steps of the figures, in words
    figures: dict[str, str]
    findings: Sequence[FindingRecord]


def render(job: JobTimeline, summary: Summary) -> str:
    """Return the page. Names from the job are text, whatever markup they hold."""
    records = job.step_records()
    drawn, timeline = _timeline(job)
    parts = {
        "title": _text(summary.title),
        "sentence": _text(summary.sentence),
        "window": _text(summary.window),
        "figures": "".join(
            f"<div><dt>{_text(name)}</dt><dd>{_text(figure)}</dd></div>"
            for name, figure in summary.figures.items()
        ),
        "findings": _findings(summary.findings),
        "drawn": _text(drawn),
        "ranks": _ranks(job, records),
        "steps": _steps(records),
        "collectives": _collectives(job),
        "data": json.dumps(timeline, separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = files("overlaptop.export").joinpath("page.html").read_text("utf-8")
    for name, part in parts.items():  # no part holds a mark of another: it begins with <
        page = page.replace(f"<!--{name}-->", part)
    return page


def _text(words: str) -> str:
    return escape(text.printable(words))


def _findings(findings: Sequence[FindingRecord]) -> str:
    if not findings:
        return "<p>None.</p>"
    articles = []
    for each in findings:
        gain = f"at most {text.duration(each.gain_ns)} a step to win, " if each.gain_ns is not None else ""
        worth = f"{gain}{each.certainty}, {each.rule}"
        articles.append(
            f"<article><p><b>{_text(each.title)}</b> <span class=soft>{_text(worth)}</span></p>"
            f"<p>{_text(each.measured)}</p><p>{_text(each.advice)}</p></article>"
        )
    return "".join(articles)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[str] = ()) -> str:
    """``words``: columns of text, aligned to the left."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=text' if head in words else ''}>{_text(cell)}</{tag}>"
            for head, cell in zip(heads, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<div class=wide><table><tr>{cells('th', heads)}</tr>{body}</table></div>"


def _ranks(job: JobTimeline, records: Sequence[StepRecord]) -> str:
    late = lateness(job.collectives)
    rows = []
    for rank in (each.rank for each in job.ranks):
        own = [record for record in records if record.rank == rank]
        found = late.of(rank) if late is not None else None
        late_in = text.UNKNOWN if found is None else f"{found.late_count:,} of {found.collectives:,}"
        rows.append([str(rank), text.count(len(own)), *_means(own), late_in])
    return _table(["rank", "steps", *_FIGURES, "late in"], rows)


def _steps(records: Sequence[StepRecord]) -> str:
    of_step: dict[int, list[StepRecord]] = {}
    for record in records:
        of_step.setdefault(record.step, []).append(record)

    def length_ns(number: int) -> float:
        return fmean(each.step_ns for each in of_step[number])

    slowest = sorted(sorted(of_step, key=length_ns, reverse=True)[:MAX_ROWS])
    table = _table(["step", *_FIGURES], [[str(number), *_means(of_step[number])] for number in slowest])
    return table + _more(len(of_step), len(slowest), "slowest steps")


def _means(records: Sequence[StepRecord]) -> list[str]:
    """Return the mean of each of `_FIGURES`; the overlap is that of the sums."""
    measured = [(each.hidden_ns or 0, each.comm_ns) for each in records if each.comm_ns is not None]
    hidden_ns, comm_ns = map(sum, zip(*measured, strict=True)) if measured else (0, 0)
    overlap = text.percent(ratios.overlap(hidden_ns, comm_ns))
    exact = all(each.compute_exact is not False for each in records)
    means = []
    for name in _FIGURES.values():
        known = (getattr(each, name) for each in records)
        mean = overlap if name == "overlap" else text.duration(mean_of_known(known))
        means.append(text.bounded(mean, BOUNDS[name], exact=exact) if name in BOUNDS else mean)
    return means


def _collectives(job: JobTimeline) -> str:
    costly = sorted(job.collectives, key=lambda each: each.caused_wait_ns, reverse=True)[:MAX_ROWS]
    rows = [
        [
            each.op,
            each.group,
            text.byte_count(each.bytes),
            text.duration(each.first_start_ns - job.start_ns),
            text.duration(None if each.not_attributed else each.longest_wait_ns),
            text.duration(None if each.not_attributed else each.least_transfer_ns),
            text.UNKNOWN if each.late_rank is None else str(each.late_rank),
            each.not_attributed,
        ]
        for each in sorted(costly, key=lambda each: each.first_start_ns)
    ]
    heads = ["operation", "group", "bytes", "at", "longest wait", "transfer", "late rank", "not attributed"]
    table = _table(heads, rows, words=("operation", "group", "not attributed"))
    return table + _more(len(job.collectives), len(rows), "collectives with the longest waits")


def _more(there: int, shown: int, which: str) -> str:
    return f"<p class=soft>The {shown} {which} of {there:,}.</p>" if shown < there else ""


def _timeline(job: JobTimeline) -> tuple[str, dict[str, object]]:
    """Return the drawn steps in words, and the drawing: times in ns from the first drawn step."""
    shown = _most_awaited(job)
    starts_ns = sorted({step.start_ns for each in shown for step in each.drawn})
    ends_ns = [step.start_ns + step.step_ns for each in shown for step in each.drawn]
    end_ns = max(ends_ns, default=0)

    def spans_from(start_ns: int) -> int:
        return sum(
            len(lane) - int(np.searchsorted(lane[:, 1], start_ns, side="right"))
            for each in shown
            for lane in _lanes(each).values()
        )

    # Later starts have fewer spans.
    first = bisect_left(starts_ns, -MAX_SPANS, key=lambda start_ns: -spans_from(start_ns))
    if first == len(starts_ns):
        said = "No step is short enough to be drawn." if starts_ns else "No step was measured in detail."
        return said, {"length_ns": 1, "ranks": []}
    start_ns = starts_ns[first]
    ranks = [
        {
            "rank": each.rank,
            "steps": [
                [step.step, step.start_ns - start_ns, step.start_ns + step.step_ns - start_ns]
                for step in each.drawn
                if step.start_ns >= start_ns
            ],
            "lanes": {
                name: flatten(clip(lane, start_ns, end_ns) - start_ns)
                for name, lane in _lanes(each).items()
                if len(lane)
            },
        }
        for each in shown
    ]
    numbers = sorted({step.step for each in shown for step in each.drawn if step.start_ns >= start_ns})
    said = f"{text.plural(len(numbers), 'measured step')}, {numbers[0]:,} to {numbers[-1]:,}."
    if any(each.computing == "phases" for each in shown):
        said += " Phases (forward, backward, optimizer) are drawn where kernels are not seen."
    if len(shown) < len(job.ranks):
        said += f" The {len(shown)} of {len(job.ranks):,} ranks that others waited for most."
    return said, {"length_ns": end_ns - start_ns, "ranks": ranks}


def _most_awaited(job: JobTimeline) -> list[RankTimeline]:
    late = lateness(job.collectives)
    caused_ns = {each.rank: each.caused_wait_ns for each in late.ranks} if late is not None else {}
    order = sorted(job.ranks, key=lambda each: (-caused_ns.get(each.rank, 0), each.rank))
    return sorted(order[:MAX_DRAWN_RANKS], key=lambda each: each.rank)


def _lanes(each: RankTimeline) -> dict[str, Spans]:
    lanes = each.lanes
    return {each.computing: lanes.compute, **each.communication, "copy": lanes.copy, "fused": lanes.fused}
