"""Reads a job from the traces of its ranks: one file, or a folder with a file for each rank."""

import dataclasses
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from overlaptop import text
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats import files, hta, kineto
from overlaptop.formats.files import NoTraceOfARankError, TraceError
from overlaptop.formats.summary import RankSummary, summarize
from overlaptop.formats.waits import align, split
from overlaptop.text import plural
from overlaptop.timeline.lanes import LaneRules
from overlaptop.wire.bounds import MAX_INT64
from overlaptop.wire.messages import StepTotals

_AT_ONCE_BYTES = 2 << 30  # Text unpacked at the same time, in all processes together
_GZIP_RATIO = 20
_NAMED_CHARS = 200
_MISSING_CHARS = 40
_MERGED = re.compile(r"(?<![a-z])merged?(?![a-z])", re.IGNORECASE)
CLOCKS_NS = 1_000_000_000
"""Maximum clock difference between hosts when times separate several traces of each rank."""
MAX_WORKERS = 16


@dataclass(frozen=True, slots=True)
class TracedJob:
    """The job in a set of traces."""

    name: str  # Name of the file or folder, without its suffixes
    path: Path
    world_size: int  # From the traces, else the number of traces
    ranks: tuple[RankSummary, ...]  # By rank
    whole: tuple[StepTotals, ...]
    """Each rank's whole trace, by our definitions or by HolisticTraceAnalysis's rules."""
    waits: Mapping[int, StepWaits]
    """Who waited for whom, by step number, including WHOLE_TRACE. Empty by HolisticTraceAnalysis's rules,
    which do not distinguish waiting from transfer."""
    remarks: tuple[str, ...] = ()  # Files left out of the folder, and the choice made among the others

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


_Answer: TypeAlias = list[RankSummary] | TraceError
_Read: TypeAlias = Callable[[int], _Answer]  # Reads the file of that number


def analyze(
    path: Path | Sequence[Path],
    rules: LaneRules,
    *,
    by_hta: bool = False,
    cycle: int | None = None,
) -> TracedJob:
    """Summarize a trace, those in a folder, or several of both, on all cores.

    `by_hta`: break the whole traces down by HolisticTraceAnalysis's rules instead of ours. `cycle`: which
    of several traces of each rank, counted from 1.

    Raises:
        TraceError: a trace cannot be used, ranks have unequal numbers of traces, or only some have a rank.
            The whole job is refused: the other ranks' figures would hide that one is missing.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    found = list(dict.fromkeys(file for each in paths for file in files.find(each)))
    whole_path = paths[0] if len(paths) == 1 else paths[0].parent
    name = _name(whole_path)
    places, are_ranks = files.ranks_of([file.name for file in found])
    alone = len(found) == 1 and not by_hta

    def read(at: int) -> _Answer:
        return _read_trace(found[at], places[at], name, rules, by_hta=by_hta, alone=alone)

    read_ranks: list[RankSummary] = []
    left_out: list[TraceError] = []
    with closing(_read_all(read, found)) as answers:
        for answer in answers:
            if isinstance(answer, list):
                read_ranks += answer
            elif isinstance(answer, NoTraceOfARankError) and len(found) > 1:
                left_out.append(answer)
            else:
                raise answer
    if not read_ranks:
        raise left_out[0]
    first = read_ranks[0]
    for each in read_ranks:
        if each.knows_rank != first.knows_rank:
            at_fault = each if first.knows_rank else first
            raise TraceError(at_fault.path, "names no rank, but other traces here do")
    chosen, said = _one_cycle(read_ranks, cycle)
    remarks = [f"left out {fault.path.name}: {fault.fault}" for fault in left_out] + said
    if len(found) > 1 and len(chosen) > 1 and not are_ranks and not first.knows_rank:
        named = ", ".join(f"{each.info.rank} {each.path.name}" for each in chosen)
        named = text.shortened(named, _NAMED_CHARS)
        remarks.append(f"no trace has a rank: each has its place among the names ({named})")
    ranks = align(chosen)
    world_size = max(len(ranks), *(summary.info.world_size for summary in ranks))
    whole = tuple(each.whole for each in ranks)
    if by_hta:
        figures = hta.choose([each.by_hta for each in ranks if each.by_hta is not None])
        # HolisticTraceAnalysis does not compute stalls.
        whole = tuple(
            replace(own, stall_ns=None, **asdict(by)) for own, by in zip(whole, figures, strict=True)
        )
    waits = {} if by_hta else split(ranks)
    return TracedJob(name, whole_path, world_size, ranks, whole, waits, tuple(remarks))


def _one_cycle(ranks: Sequence[RankSummary], cycle: int | None) -> tuple[list[RankSummary], list[str]]:
    """Return one trace of each rank, by rank, and remarks about the others.

    A profiler with a repeating schedule writes a trace of each rank for every cycle.
    """
    merged = [each for each in ranks if _MERGED.search(each.path.name)]
    if len(merged) == len(ranks) or len({each.info.rank for each in ranks}) == len(ranks):
        merged = []
    said = [f"left out {each.path.name}: merged from others by its name" for each in merged]
    by_rank: dict[int, list[RankSummary]] = {}
    own = [each for each in ranks if each not in merged]
    for each in sorted(own, key=lambda each: (each.info.rank, each.whole.start_ns)):
        by_rank.setdefault(each.info.rank, []).append(each)
    most = max(by_rank.values(), key=len)
    cycles = len(most)
    for rank, of in by_rank.items():
        if len(of) < cycles:
            raise TraceError(
                most[-1].path,
                f"is of rank {most[-1].info.rank}, and so is {most[0].path}, but of rank {rank} "
                f"there {'is' if len(of) == 1 else 'are'} {len(of)}: name the traces of one job",
            )
    wanted = cycles if cycle is None else cycle
    if not 1 <= wanted <= cycles:
        folder = ranks[0].path.parent
        raise TraceError(folder, f"there is no cycle {wanted}: {plural(cycles, 'trace')} a rank")
    first, *others = chosen = [of[wanted - 1] for of in by_rank.values()]
    if cycles == 1:
        return chosen, said
    for each in others:
        earlier, later = sorted((first.whole, each.whole), key=attrgetter("start_ns"))
        if later.start_ns > earlier.start_ns + earlier.step_ns + CLOCKS_NS:
            words = f"is of another time than {first.path}: name the traces of one job"
            raise TraceError(each.path, words)
    times = ", ".join(text.clock(each.whole.start_ns) for each in by_rank[first.info.rank])
    return chosen, [*said, f"{cycles} traces of each rank, at {times}: this is --cycle {wanted}"]


def _read_trace(
    file: Path, place: int, job: str, rules: LaneRules, *, by_hta: bool, alone: bool
) -> _Answer:
    """Read one file. `place`: its rank if the trace does not say. `alone`: all its GPUs, else the one that
    computes most.
    """
    try:
        traces = kineto.load(file, files.read(file), rules)
        first = traces[0]
        if by_hta and first.on_host:
            words = "no GPU activity in it, and HolisticTraceAnalysis looks at nothing else"
            return TraceError(file, words)
        ranked = {place if first.rank is None else first.rank: first}
        said: tuple[str, ...] = ()
        if len(traces) > 1 and alone:
            numbers = [traced.gpu for traced in traces if traced.gpu is not None]
            distinct = len(set(numbers)) == len(traces)
            ranked = dict(zip(numbers if distinct else range(len(traces)), traces, strict=True))
            said = (f"{len(traces)} GPUs in one trace: each row is a GPU",)
        elif len(traces) > 1:
            said = (f"{plural(len(traces) - 1, 'other GPU')} in {file.name}, not shown: analyze it alone",)
        figures = hta.figures(first.trace.events) if by_hta else None
        summaries = []
        for rank, traced in sorted(ranked.items()):
            summary = summarize(traced, rank, job)
            remarks = (*summary.remarks, *said)
            summaries.append(dataclasses.replace(summary, remarks=remarks, by_hta=figures))
        steps = (each for summary in summaries for each in (*summary.steps, summary.whole))
        if any((each.comm_kernels_ns or 0) > MAX_INT64 for each in steps):
            raise OverflowError
        return summaries
    except TraceError as fault:
        return fault
    except OverflowError:
        return TraceError(file, "a number in it is larger than any in a trace")
    except MemoryError:
        return TraceError(file, "does not fit into this machine's memory")


# Reading on several cores. Threads would not help: parsing holds Python's lock.

_READ_IN_CHILD: list[_Read] = []


def _read_all(read: _Read, found: Sequence[Path]) -> Generator[_Answer, None, None]:
    """Read the files in order, in several processes if there is more than one.

    Raises TraceError if a process was killed.
    """
    workers = _worker_count(found)
    if workers < 2:
        yield from map(read, range(len(found)))
        return
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, fork, _begin_child, (read,)) as pool:
        try:
            yield from pool.map(_read_in_child, range(len(found)))
        except BrokenProcessPool as fault:
            raise TraceError(found[0].parent, "a reading process was killed: too little memory?") from fault
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_child(read: _Read) -> None:
    _READ_IN_CHILD.append(read)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback


def _read_in_child(at: int) -> _Answer:
    return _READ_IN_CHILD[0](at)


def _worker_count(found: Sequence[Path]) -> int:
    text_bytes = 1
    for file in found:
        with suppress(OSError):  # reported when it is read
            text_bytes = max(text_bytes, file.stat().st_size * (_GZIP_RATIO if file.suffix == ".gz" else 1))
    return min(len(os.sched_getaffinity(0)), len(found), MAX_WORKERS, _AT_ONCE_BYTES // text_bytes)


def _name(path: Path) -> str:
    name = path.resolve().name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or "trace"
