"""A job from the traces of its ranks: one file, or a folder with one for each."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path

from overlaptop.formats import files, hta, kineto, workers
from overlaptop.formats.files import TraceError
from overlaptop.formats.summary import RankSummary, summarize
from overlaptop.timeline.breakdown import Breakdown
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

    @property
    def missing(self) -> list[int]:
        """Ranks of the job of which there is no trace."""
        seen = {summary.info.rank for summary in self.ranks}
        return [rank for rank in range(self.world_size) if rank not in seen]


@dataclass(frozen=True, slots=True)
class _FileResult:
    """What became of one file."""

    fault: str = ""
    """Why it cannot be used; the other fields are then of no meaning."""
    knows_rank: bool = False
    summary: RankSummary | None = None
    hta: hta.Figures | None = None


def analyze(path: Path, rules: LaneRules, *, by_hta: bool = False, detailed: bool = False) -> TracedJob:
    """Summarize the trace at `path`, or those in the folder `path`, on all cores.

    `by_hta` takes the breakdown of the whole traces by HolisticTraceAnalysis's rules instead of ours;
    `detailed`: with timelines.

    Raises:
        TraceError: one of them cannot be used, two are of the same rank, or only some have one. A job
            is refused as a whole: the figures of the other ranks would hide that one is missing.
    """
    found, name = files.find(path), _name(path)

    def work(at: int) -> bytes:
        return pickle.dumps(_read_trace(found[at], at, name, rules, by_hta=by_hta, detailed=detailed))

    summaries: dict[int, RankSummary] = {}
    file_of: dict[int, Path] = {}
    figures: dict[int, hta.Figures] = {}
    known: list[bool] = []
    with closing(workers.spread(work, len(found), _worker_count(found))) as answers:
        for file in found:
            try:
                # By a fork of this process, so it may be unpickled. The codec of messages would refuse what
                # no live job has: step -1, the whole trace, times before 1970, a step of 0 ns.
                result: _FileResult = pickle.loads(next(answers))  # noqa: S301
            except workers.WorkerDiedError as fault:
                raise TraceError(file, "the process that read it was killed: too little memory?") from fault
            if result.fault or result.summary is None:
                raise TraceError(file, result.fault)
            known.append(result.knows_rank)
            if known[-1] != known[0]:
                raise TraceError(file if known[0] else found[0], "tells no rank, but other traces here do")
            rank = result.summary.info.rank
            if rank in file_of:
                raise TraceError(file, f"is of rank {rank}, and so is {file_of[rank]}: one job at a time")
            file_of[rank], summaries[rank] = file, result.summary
            if result.hta is not None:
                figures[rank] = result.hta
    order = sorted(summaries)
    ranks = tuple(summaries[rank] for rank in order)
    world_size = max(len(ranks), *(summary.info.world_size for summary in ranks))
    whole = tuple(each.whole for each in ranks)
    if by_hta:
        chosen = hta.choose([figures[rank] for rank in order])
        whole = tuple(map(_by_hta, whole, chosen))
    return TracedJob(name, path, world_size, ranks, whole)


def _read_trace(
    file: Path, at: int, job: str, rules: LaneRules, *, by_hta: bool, detailed: bool
) -> _FileResult:
    try:
        traced = kineto.load(file, files.read(file), rules)
        if by_hta and traced.on_host:
            raise TraceError(file, "no GPU activity in it, and HolisticTraceAnalysis looks at nothing else")
        summary = summarize(traced, at if traced.rank is None else traced.rank, job, detailed=detailed)
        if any((each.comm_kernels_ns or 0) > MAX_INT64 for each in (*summary.steps, summary.whole)):
            return _FileResult(fault=_TOO_LARGE)
        return _FileResult(
            knows_rank=traced.rank is not None,
            summary=summary,
            hta=hta.figures(traced.trace.events) if by_hta else None,
        )
    except TraceError as fault:
        return _FileResult(fault=fault.fault)
    except OverflowError:
        return _FileResult(fault=_TOO_LARGE)
    except MemoryError:
        return _FileResult(fault="does not fit into this machine's memory")


def _by_hta(whole: StepTotals, by_hta: Breakdown) -> StepTotals:
    """The whole trace with its parts as HolisticTraceAnalysis has them; it knows nothing of stalls."""
    return replace(
        whole, stall_ns=None, **{each.name: getattr(by_hta, each.name) for each in fields(by_hta)}
    )


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
