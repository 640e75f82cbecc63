"""Reads a job from the traces of its ranks: one file, or a folder with a file for each rank."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from overlaptop import text
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats import files, hta, kineto, workers
from overlaptop.formats.files import NoTraceOfARankError, TraceError, ranks_of
from overlaptop.formats.kineto import RankTrace
from overlaptop.formats.summary import RankSummary, summarize
from overlaptop.formats.waits import align, split
from overlaptop.text import plural
from overlaptop.timeline.lanes import LaneRules
from overlaptop.wire.bounds import MAX_INT64
from overlaptop.wire.messages import StepTotals

_AT_ONCE_BYTES = 2 << 30
"""Text unpacked at the same time, in all processes together."""
_GZIP_RATIO = 20
_NAMED_CHARS = 200
_MISSING_CHARS = 40
CLOCKS_NS = 1_000_000_000
"""Maximum clock difference between hosts when times separate several traces of each rank."""
_MERGED = re.compile(r"(?<![a-z])merged?(?![a-z])", re.IGNORECASE)
_TOO_LARGE = "a number in it is larger than any in a trace"


@dataclass(frozen=True, slots=True)
class TracedJob:
    """The job in a set of traces."""

    name: str
    """Name of the file or folder, without its suffixes."""
    path: Path
    world_size: int
    """From the traces, else the number of traces."""
    ranks: tuple[RankSummary, ...]
    """By rank."""
    whole: tuple[StepTotals, ...]
    """Each rank's whole trace, by our definitions or by HolisticTraceAnalysis's rules."""
    waits: Mapping[int, StepWaits]
    """Who waited for whom, by step number, including WHOLE_TRACE. Empty by HolisticTraceAnalysis's rules,
    which do not distinguish waiting from transfer."""
    remarks: tuple[str, ...] = ()
    """Files left out of the folder, and the choice made among the others."""

    @property
    def step_numbers(self) -> list[int]:
        return sorted({step.step for summary in self.ranks for step in summary.steps})

    @property
    def missing(self) -> list[int]:
        seen = {summary.info.rank for summary in self.ranks}
        return [rank for rank in range(self.world_size) if rank not in seen]

    @property
    def missing_text(self) -> str:
        """Return which ranks have no trace; empty if each has one."""
        missing = text.shortened(text.runs_of(self.missing), _MISSING_CHARS)
        return f"no trace of rank {missing} of {self.world_size}" if missing else ""


class _ReadTrace(NamedTuple):
    """The data of one file."""

    summaries: tuple[RankSummary, ...]
    """If there are other files: the GPU that computes most. Else all GPUs, by number."""
    knows_rank: bool
    """False if the rank is only the file's number."""
    figures: hta.Figures | None

    @property
    def rank(self) -> int:
        return self.summaries[0].info.rank


class _Unusable(NamedTuple):
    """Why a file cannot be used."""

    why: str
    no_trace_of_a_rank: bool = False
    """It may be left out if there are others: it is not damaged, but holds no rank's GPU activity."""


_Reads: TypeAlias = Sequence[tuple[Path, _ReadTrace]]


def analyze(
    path: Path | Sequence[Path],
    rules: LaneRules,
    *,
    by_hta: bool = False,
    detailed: bool = False,
    cycle: int | None = None,
) -> TracedJob:
    """Summarize a trace, those in a folder, or several of both, on all cores.

    `by_hta`: break the whole traces down by HolisticTraceAnalysis's rules instead of ours. `detailed`: with
    timelines. `cycle`: which of several traces of each rank, counted from 1.

    Raises:
        TraceError: a trace cannot be used, ranks have unequal numbers of traces, or only some have a rank.
            The whole job is refused: the other ranks' figures would hide that one is missing.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    found = list(dict.fromkeys(file for each in paths for file in files.find(each)))
    whole_path = paths[0] if len(paths) == 1 else paths[0].parent
    name = _name(whole_path)
    places = ranks_of([file.name for file in found])

    def work(at: int) -> _ReadTrace | _Unusable:
        alone = len(found) == 1 and not by_hta
        return _read_trace(
            found[at], places.ranks[at], name, rules, by_hta=by_hta, detailed=detailed, alone=alone
        )

    reads, left_out = [], []
    with closing(workers.spread(work, len(found), _worker_count(found))) as answers:
        for file in found:
            try:
                read = next(answers)
            except workers.WorkerDiedError as fault:
                raise TraceError(file, "the process that read it was killed: too little memory?") from fault
            if isinstance(read, _ReadTrace):
                reads.append((file, read))
            elif read.no_trace_of_a_rank and len(found) > 1:
                left_out.append((file, read.why))
            else:
                raise TraceError(file, read.why)
    if not reads:
        raise TraceError(*left_out[0])
    remarks = [f"left out {file.name}: {why}" for file, why in left_out]
    chosen, said = _one_cycle(_of_one_kind(reads), cycle)
    remarks += said
    if len(chosen) > 1 and not places.known and not chosen[0][1].knows_rank:
        named = text.shortened(", ".join(f"{read.rank} {file.name}" for file, read in chosen), _NAMED_CHARS)
        remarks.append(f"no trace has a rank: each has its place among the names ({named})")
    ranks = align([summary for _, each in chosen for summary in each.summaries])
    world_size = max(len(ranks), *(summary.info.world_size for summary in ranks))
    whole = tuple(each.whole for each in ranks)
    if by_hta:
        figures = hta.choose([each.figures for _, each in chosen if each.figures is not None])
        # HolisticTraceAnalysis does not compute stalls.
        whole = tuple(
            replace(own, stall_ns=None, **asdict(by)) for own, by in zip(whole, figures, strict=True)
        )
    waits = {} if by_hta else split(ranks)
    return TracedJob(name, whole_path, world_size, ranks, whole, waits, tuple(remarks))


def _of_one_kind(reads: _Reads) -> _Reads:
    """Check that all traces have a rank, or none has."""
    _, first = reads[0]
    for file, read in reads:
        if read.knows_rank != first.knows_rank:
            at_fault = file if first.knows_rank else reads[0][0]
            raise TraceError(at_fault, "names no rank, but other traces here do")
    return reads


def _one_cycle(reads: _Reads, cycle: int | None) -> tuple[_Reads, list[str]]:
    """Return one trace of each rank, by rank, and remarks about the others.

    A profiler with a repeating schedule writes a trace of each rank for every cycle.
    """
    said = []
    by_rank = _by_rank(reads)
    if any(len(of) > 1 for of in by_rank.values()):
        merged = [file for file, _ in reads if _MERGED.search(file.name)]
        said += [f"left out {file.name}: merged from others by its name" for file in merged]
        by_rank = _by_rank([(file, read) for file, read in reads if file not in merged]) or by_rank
    cycles = max(map(len, by_rank.values()))
    for rank, of in sorted(by_rank.items()):
        if len(of) < cycles:
            most = next(of for of in by_rank.values() if len(of) == cycles)
            raise TraceError(
                most[-1][0],
                f"is of rank {most[-1][1].rank}, and so is {most[0][0]}, but of rank {rank} "
                f"there {'is' if len(of) == 1 else 'are'} {len(of)}: name the traces of one job",
            )
    wanted = cycles if cycle is None else cycle
    if not 1 <= wanted <= cycles:
        raise TraceError(
            reads[0][0].parent, f"there is no cycle {wanted}: {plural(cycles, 'trace')} a rank"
        )
    if cycles > 1:
        times = ", ".join(
            text.clock(read.summaries[0].whole.start_ns) for _, read in next(iter(by_rank.values()))
        )
        said.append(f"{cycles} traces of each rank, at {times}: this is --cycle {wanted}")
    chosen = [by_rank[rank][wanted - 1] for rank in sorted(by_rank)]
    if cycles > 1:
        _require_one_time(chosen)
    return chosen, said


def _require_one_time(chosen: _Reads) -> None:
    """Raise TraceError if a trace does not overlap the first in time: they belong to two cycles."""
    file, read = chosen[0]
    first = read.summaries[0].whole
    for other, each in chosen[1:]:
        own = each.summaries[0].whole
        begin_ns = max(own.start_ns, first.start_ns)
        end_ns = min(own.start_ns + own.step_ns, first.start_ns + first.step_ns)
        if begin_ns > end_ns + CLOCKS_NS:
            raise TraceError(other, f"is of another time than {file}: name the traces of one job")


def _by_rank(reads: _Reads) -> dict[int, list[tuple[Path, _ReadTrace]]]:
    by_rank: dict[int, list[tuple[Path, _ReadTrace]]] = {}
    for file, read in sorted(reads, key=lambda each: each[1].summaries[0].whole.start_ns):
        by_rank.setdefault(read.rank, []).append((file, read))
    return by_rank


def _read_trace(
    file: Path, place: int, job: str, rules: LaneRules, *, by_hta: bool, detailed: bool, alone: bool
) -> _ReadTrace | _Unusable:
    try:
        traces = kineto.load(file, files.read(file), rules)
        first = traces[0]
        if by_hta and first.on_host:
            return _Unusable("no GPU activity in it, and HolisticTraceAnalysis looks at nothing else")
        if len(traces) == 1:
            ranked = {place if first.rank is None else first.rank: first}
        elif alone:
            ranked = _by_gpu(traces)
        else:
            words = f"{plural(len(traces) - 1, 'other GPU')} in {file.name}, not shown: analyze it alone"
            ranked = {place if first.rank is None else first.rank: _with_remark(first, words)}
        summaries = tuple(
            summarize(traced, rank, job, detailed=detailed) for rank, traced in sorted(ranked.items())
        )
        figures = (each for summary in summaries for each in (*summary.steps, summary.whole))
        if any((each.comm_kernels_ns or 0) > MAX_INT64 for each in figures):
            return _Unusable(_TOO_LARGE)
        by = hta.figures(first.trace.events) if by_hta else None
        return _ReadTrace(summaries, first.rank is not None, by)
    except NoTraceOfARankError as fault:
        return _Unusable(fault.fault, no_trace_of_a_rank=True)
    except TraceError as fault:
        return _Unusable(fault.fault)
    except OverflowError:
        return _Unusable(_TOO_LARGE)
    except MemoryError:
        return _Unusable("does not fit into this machine's memory")


def _with_remark(traced: RankTrace, words: str) -> RankTrace:
    return dataclasses.replace(traced, remarks=(*traced.remarks, words))


def _by_gpu(traces: Sequence[RankTrace]) -> dict[int, RankTrace]:
    """Return the GPUs of one file as ranks, by their numbers if these are all different."""
    numbers = [traced.gpu for traced in traces]
    distinct = len(set(numbers)) == len(traces) and None not in numbers
    words = f"{len(traces)} GPUs in one trace: each row is a GPU"
    return {
        number if distinct and number is not None else at: _with_remark(traced, words)
        for at, (number, traced) in enumerate(zip(numbers, traces, strict=True))
    }


def _worker_count(found: Sequence[Path]) -> int:
    """Return the number of cores, or fewer if the texts together would need too much memory."""
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
