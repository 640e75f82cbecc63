"""A job from the traces of its ranks: one file, or a folder with one for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from overlaptop.fleet.waits import StepWaits
from overlaptop.formats import files, hta, kineto, workers
from overlaptop.formats.files import TraceError
from overlaptop.formats.kineto import RankTrace
from overlaptop.formats.summary import RankSummary, summarize
from overlaptop.formats.waits import align, split
from overlaptop.text import plural
from overlaptop.timeline.lanes import LaneRules
from overlaptop.wire.bounds import MAX_INT64
from overlaptop.wire.messages import StepTotals

_AT_ONCE_BYTES = 2 << 30
"""Text that is unpacked at one time, in all processes together."""
_GZIP_RATIO = 20
_TOO_LARGE = "a number in it is larger than any in a trace"


@dataclass(frozen=True, slots=True)
class TracedJob:
    """What a set of traces contains."""

    name: str
    """The file's or folder's own name, without its suffixes."""
    path: Path
    world_size: int
    """As the traces have it, else how many there are."""
    ranks: tuple[RankSummary, ...]
    """By rank."""
    whole: tuple[StepTotals, ...]
    """Each rank's whole trace, by our definitions or by HolisticTraceAnalysis's rules."""
    waits: Mapping[int, StepWaits]
    """Who waited for whom, by the step's number; WHOLE_TRACE is one of them. Empty by
    HolisticTraceAnalysis's rules, which do not tell waiting from transferring."""

    @property
    def step_numbers(self) -> list[int]:
        """Those that any rank has."""
        return sorted({step.step for summary in self.ranks for step in summary.steps})

    @property
    def missing(self) -> list[int]:
        """Ranks of the job of which there is no trace."""
        seen = {summary.info.rank for summary in self.ranks}
        return [rank for rank in range(self.world_size) if rank not in seen]


class _ReadTrace(NamedTuple):
    """What is taken from one file."""

    summaries: tuple[RankSummary, ...]
    """Of a file that is not alone the GPU that computes most; else each, by its number."""
    knows_rank: bool
    """Else it has the number of its file."""
    figures: hta.Figures | None


def analyze(path: Path, rules: LaneRules, *, by_hta: bool = False, detailed: bool = False) -> TracedJob:
    """Summarize the trace at `path`, or those in the folder `path`, on all cores.

    `by_hta` takes the breakdown of the whole traces by HolisticTraceAnalysis's rules instead of ours;
    `detailed`: with timelines.

    Raises:
        TraceError: one of them cannot be used, two are of the same rank, or only some have one. A job
            is refused as a whole: the figures of the other ranks would hide that one is missing.
    """
    found, name = files.find(path), _name(path)

    def work(at: int) -> _ReadTrace | str:
        alone = len(found) == 1 and not by_hta
        return _read_trace(found[at], at, name, rules, by_hta=by_hta, detailed=detailed, alone=alone)

    by_rank: dict[int, tuple[Path, _ReadTrace]] = {}
    first: _ReadTrace | None = None
    with closing(workers.spread(work, len(found), _worker_count(found))) as answers:
        for file in found:
            try:
                read = next(answers)
            except workers.WorkerDiedError as fault:
                raise TraceError(file, "the process that read it was killed: too little memory?") from fault
            if isinstance(read, str):
                raise TraceError(file, read)
            first = first or read
            if read.knows_rank != first.knows_rank:
                raise TraceError(
                    file if first.knows_rank else found[0], "tells no rank, but other traces here do"
                )
            rank = read.summaries[0].info.rank
            if rank in by_rank:
                other = by_rank[rank][0]
                raise TraceError(file, f"is of rank {rank}, and so is {other}: one job at a time")
            by_rank[rank] = file, read
    reads = [by_rank[rank][1] for rank in sorted(by_rank)]
    ranks = align([summary for each in reads for summary in each.summaries])
    world_size = max(len(ranks), *(summary.info.world_size for summary in ranks))
    whole = tuple(each.whole for each in ranks)
    if by_hta:
        figures = hta.choose([each.figures for each in reads if each.figures is not None])
        # HolisticTraceAnalysis knows nothing of stalls.
        whole = tuple(
            replace(own, stall_ns=None, **asdict(by)) for own, by in zip(whole, figures, strict=True)
        )
    return TracedJob(name, path, world_size, ranks, whole, {} if by_hta else split(ranks))


def _read_trace(
    file: Path, at: int, job: str, rules: LaneRules, *, by_hta: bool, detailed: bool, alone: bool
) -> _ReadTrace | str:
    """Or why the file cannot be used."""
    try:
        traces = kineto.load_each(file, files.read(file), rules)
        first = traces[0]
        if by_hta and first.on_host:
            return "no GPU activity in it, and HolisticTraceAnalysis looks at nothing else"
        if len(traces) == 1:
            ranked = {at if first.rank is None else first.rank: first}
        elif alone:
            ranked = _by_gpu(traces)
        else:
            words = (
                f"{plural(len(traces) - 1, 'more GPU')} in this trace: analyze {file.name} alone for each"
            )
            ranked = {at if first.rank is None else first.rank: _with_remark(first, words)}
        summaries = tuple(
            summarize(traced, rank, job, detailed=detailed) for rank, traced in sorted(ranked.items())
        )
        figures = (each for summary in summaries for each in (*summary.steps, summary.whole))
        if any((each.comm_kernels_ns or 0) > MAX_INT64 for each in figures):
            return _TOO_LARGE
        by = hta.figures(first.trace.events) if by_hta else None
        return _ReadTrace(summaries, first.rank is not None, by)
    except TraceError as fault:
        return fault.fault
    except OverflowError:
        return _TOO_LARGE
    except MemoryError:
        return "does not fit into this machine's memory"


def _with_remark(traced: RankTrace, words: str) -> RankTrace:
    return dataclasses.replace(traced, remarks=(*traced.remarks, words))


def _by_gpu(traces: Sequence[RankTrace]) -> dict[int, RankTrace]:
    """The GPUs of one file as if each were a rank, by their numbers where these are all different."""
    numbers = [traced.gpu for traced in traces]
    distinct = len(set(numbers)) == len(traces) and None not in numbers
    words = f"{len(traces)} GPUs in one trace: each row is a GPU"
    return {
        number if distinct and number is not None else at: _with_remark(traced, words)
        for at, (number, traced) in enumerate(zip(numbers, traces, strict=True))
    }


def _worker_count(found: Sequence[Path]) -> int:
    """As many processes as there are cores, if their texts together are not too much to hold."""
    text_bytes = 1
    for file in found:
        try:
            size_bytes = file.stat().st_size
        except OSError:  # reported when it is read
            continue
        text_bytes = max(text_bytes, size_bytes * (_GZIP_RATIO if file.suffix == ".gz" else 1))
    return min(workers.cores(), _AT_ONCE_BYTES // text_bytes)


def _name(path: Path) -> str:
    name = path.resolve().name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or "trace"
