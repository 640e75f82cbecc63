"""Writes traces as torch.profiler does, a file for each rank, for HolisticTraceAnalysis and ``analyze``.

Both find activities by category and name, and steps by ProfilerStep annotations. HolisticTraceAnalysis
counts an activity only if its launch is in the trace and began before the last annotation. Launches are not
known here. So each activity gets one at its own start, of a category that `analyze` does not read, and a
last annotation follows that `analyze` does not count as a step.
"""

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from errno import ENOTEMPTY
from itertools import count
from pathlib import Path
from typing import Any

from overlaptop.export.timeline import JobTimeline, RankTimeline
from overlaptop.timeline.arrivals import Collective
from overlaptop.timeline.spans import difference, from_pairs

_COMPUTE_STREAM, _COPY_STREAM, _FUSED_STREAM, _FIRST_COMM_STREAM = 7, 8, 9, 20
_COMM_KERNEL = "ncclDevKernel"  # The only name that HolisticTraceAnalysis counts as communication
_FUSED_KERNEL = "kernel_gemm_rs_producer"  # Fused for `timeline.lanes`, compute for HolisticTraceAnalysis
_LAUNCH = "overlaptop"  # Not a category of launches in torch.profiler's traces

_Event = dict[str, Any]


def write(job: JobTimeline, folder: Path) -> list[Path]:
    """Write ``rankN.json.gz`` for each rank into `folder`, and return the files.

    Raises OSError also if the folder is not empty: another job's traces would be read with these.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise OSError(ENOTEMPTY, os.strerror(ENOTEMPTY))
    base_ns = job.start_ns
    written = []
    for each in job.ranks:
        path = folder / f"rank{each.rank}.json.gz"
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as out:
            json.dump(_trace(job, each, base_ns), out)
        written.append(path)
    return written


def _trace(job: JobTimeline, each: RankTimeline, base_ns: int) -> _Event:
    info = each.info
    backend, _, version = info.backend.partition(" ")
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": info.device}],
        "distributedInfo": {
            "backend": backend,
            "rank": each.rank,
            "world_size": info.world_size,
            **({"nccl_version": version} if version else {}),
        },
        "baseTimeNanoseconds": base_ns,
        "traceEvents": list(_events(job, each, base_ns)),
    }


def _events(job: JobTimeline, each: RankTimeline, base_ns: int) -> Iterator[_Event]:
    for step in each.drawn:
        yield _event(
            "user_annotation", f"ProfilerStep#{step.step}", step.start_ns - base_ns, step.step_ns, tid=1
        )
    if each.drawn:
        last = each.drawn[-1]
        end_ns = last.start_ns + last.step_ns - base_ns
        # The blank makes it no step for `analyze`.
        yield _event("user_annotation", f"ProfilerStep# {last.step + 1}", end_ns, 0, tid=1)
    correlations = count(1)

    def activity(
        cat: str, name: str, start_ns: int, end_ns: int, stream: int, more: Mapping[str, object] = {}
    ) -> list[_Event]:
        correlation = next(correlations)
        at_ns = start_ns - base_ns
        linked = {"device": 0, "stream": stream, "correlation": correlation, **more}
        return [
            _event(_LAUNCH, "launch", at_ns, 0, tid=1, args={"correlation": correlation}),
            _event(cat, name, at_ns, end_ns - start_ns, tid=stream, args=linked),
        ]

    for cat, name, lane, stream in (
        ("kernel", "compute", each.lanes.compute, _COMPUTE_STREAM),
        ("gpu_memcpy", "Memcpy DtoD", each.lanes.copy, _COPY_STREAM),
        ("kernel", _FUSED_KERNEL, each.lanes.fused, _FUSED_STREAM),
    ):
        for start_ns, end_ns in lane.tolist():
            yield from activity(cat, name, start_ns, end_ns, stream)
    rows = job.rows_of(each.rank)
    named = from_pairs([span for row in rows for span, _ in row])
    for stream, row in enumerate(rows, _FIRST_COMM_STREAM + 1):
        for span, found in row:
            name = f"{_COMM_KERNEL}_{found.op}"
            yield from activity("kernel", name, *span, stream, _arguments(found, each.rank))
    for start_ns, end_ns in difference(each.lanes.comm, named).tolist():
        yield from activity("kernel", _COMM_KERNEL, start_ns, end_ns, _FIRST_COMM_STREAM)


def _arguments(found: Collective, rank: int) -> dict[str, object]:
    """Return the arguments by which both readers match collectives.

    A collective that is not attributed gets a group of this rank alone, so that no reader attributes it.
    """
    args: dict[str, object] = {"Collective name": found.op}
    if found.not_attributed:
        args["Process Group Name"] = f"not attributed on rank {rank}"
    else:
        args |= {
            "Process Group Name": found.group,
            "Process Group Ranks": str(list(found.ranks)),
            "Group size": len(found.ranks),
        }
    if found.bytes is not None:
        args |= {"In msg nelems": found.bytes, "Out msg nelems": found.bytes, "dtype": "Byte"}
    if found.sender is not None:
        receiver = next((rank for rank in found.ranks if rank != found.sender), found.sender)
        args |= {"Src Rank": found.sender, "Dst Rank": receiver}
    return args


def _event(
    cat: str, name: str, at_ns: int, duration_ns: int, *, tid: int, args: _Event | None = None
) -> _Event:
    """Return a complete event, `at_ns` after the trace's base. The format counts in microseconds."""
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid,
        "ts": at_ns / 1000, "dur": duration_ns / 1000, "args": args or {},
    }  # fmt: skip
