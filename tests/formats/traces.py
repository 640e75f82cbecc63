"""Traces made of a few words, as torch.profiler writes them. Times in microseconds."""

import gzip
import json
from pathlib import Path

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.formats import kineto
from overlaptop.timeline.lanes import LaneRules

BASE_NS = 1_790_857_026_000_000_000
US = 1000
PATH = Path("some/trace.json")
DATA = Path(__file__).with_name("data")
PAGES = Path(__file__).with_name("pages")
TOTALS = (
    "compute_ns", "comm_ns", "hidden_ns", "exposed_ns", "copy_only_ns", "idle_ns", "stall_ns", "fused_ns",
    "launch_lead_ns", "host_ns", "collectives", "comm_bytes", "comm_kernels_ns", "matched_ns",
)  # fmt: skip


def kernel(ts, dur, name="gemm", *, stream=7, correlation=None, cat="kernel", **args):
    linked = {} if correlation is None else {"correlation": correlation}
    return event(cat, name, ts, dur, args={"device": 0, "stream": stream, **linked, **args})


def nccl(ts, dur, *, stream=20, **args):
    return kernel(ts, dur, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", stream=stream, **args)


def named(ts, dur, *, op="allreduce", group="0", ranks="[0, 1]", elements=1024, **more):
    """A kernel with the args of a recent torch."""
    args = {
        "Collective name": op, "Process Group Name": group, "Process Group Ranks": ranks,
        "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
    }  # fmt: skip
    return nccl(ts, dur, **args, **more)


def launch(ts, correlation, dur=5.0):
    return event("cuda_runtime", "cudaLaunchKernel", ts, dur, args={"correlation": correlation})


def mark(number, ts, dur, cat="user_annotation"):
    return event(cat, f"ProfilerStep#{number}", ts, dur, args={"External id": number})


def event(cat, name, ts, dur, args=None):
    made = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur}
    return made if args is None else {**made, "args": args}


def trace(*events, rank=0, world_size=1, base_ns=BASE_NS, **more):
    made = {"schemaVersion": 1, "traceEvents": list(events), **more}
    if rank is not None:
        made["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size,
                                   "nccl_version": "2.28.9"}  # fmt: skip
    if base_ns is not None:
        made["baseTimeNanoseconds"] = base_ns
    return made


def text(*events, **more):
    return json.dumps(trace(*events, **more)).encode()


def read(content, path=PATH):
    """This text, as kineto reads it: its busiest GPU."""
    return kineto.load(path, content, LaneRules())[0]


def load(*events, path=PATH, **more):
    """The trace of these events, likewise."""
    return read(text(*events, **more), path)


def write(path, *events, **more):
    """Write a trace, gzipped where the name says so."""
    content = text(*events, **more)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def small_job(folder, ranks=2):
    """Two steps a rank; the last one hides half of its communication."""
    for rank in range(ranks):
        write(
            folder / f"rank{rank}.json.gz",
            mark(5, 0, 99), mark(6, 100, 100), launch(1, 1), launch(2, 2), launch(110, 3), launch(111, 4),
            kernel(10, 50, correlation=1), nccl(20, 20, correlation=2),
            kernel(120, 50, correlation=3), nccl(150, 40, correlation=4),
            rank=rank, world_size=ranks, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}],
        )  # fmt: skip
    return folder


def us(ns):
    return f"{ns / US:g}"


def described(found):
    """A rank, its whole trace and its steps: their totals but for 0, lanes, and collectives, in µs."""
    info = found.info
    yield f"rank {info.rank} of {info.world_size}, {info.device or '-'}, {info.backend or '-'}"
    for totals, detail in zip((found.whole, *found.steps), found.details, strict=True):
        start_ns = totals.start_ns - BASE_NS
        name = "whole trace" if totals.step == WHOLE_TRACE else f"step {totals.step}"
        yield f"{name}, {us(start_ns)} to {us(start_ns + totals.step_ns)}"
        known = {of: value for of in TOTALS if (value := getattr(totals, of))}
        times = (f"{of[:-3]} {us(ns)}" for of, ns in known.items() if of.endswith("_ns"))
        counts = (f"{of} {count}" for of, count in known.items() if not of.endswith("_ns"))
        yield f"  {', '.join([*times, *counts])}"
        for lane in ("compute", "comm", "copy", "fused", "stall"):
            if ends := [*map(us, getattr(detail, f"{lane}_spans_ns"))]:
                yield f"  {lane:7}  {', '.join(map(' to '.join, zip(ends[::2], ends[1::2], strict=True)))}"
        for each in detail.collectives:
            where = f" in {each.group}" if each.group else ""
            yield f"  {us(each.start_ns)} to {us(each.end_ns)}: {each.op}{where}, {each.bytes} bytes"
    yield from found.remarks
