"""Jobs to export: recorded traces, and made-up ones with every kind of lane."""

from pathlib import Path

from hypothesis import strategies as st

from overlaptop.export.timeline import JobTimeline, from_traces
from overlaptop.formats.job import TracedJob, analyze
from overlaptop.timeline.lanes import LaneRules
from tests.formats.traces import DATA, kernel, mark, nccl, write

RECORDED = ("ddp_25mb", "ddp_gloo", "fsdp2", "tp")
FUSED = "kernel_gemm_rs_producer"


def traced(*paths: Path) -> TracedJob:
    return analyze(paths, LaneRules())


def recorded(name: str) -> JobTimeline:
    return from_traces(traced(DATA / name))


def all_reduce(start: int, length: int, ranks: int, **args: object) -> dict:
    """Of a group of all ranks."""
    group = {"Process Group Name": "0", "Process Group Ranks": str(list(range(ranks))), "Group size": ranks}
    sizes = {"In msg nelems": 4, "Out msg nelems": 4, "dtype": "Float"}
    return nccl(start, length, **{"Collective name": "allreduce", **group, **sizes, **args})


times = st.tuples(st.integers(0, 200_000), st.integers(1, 30_000)).map(lambda t: (t[0] / 1000, t[1] / 1000))


@st.composite
def folders(draw: st.DrawFn, folder: Path) -> Path:
    """Two ranks, two steps: kernels anywhere, one all-reduce each a step."""
    for rank in range(2):
        events = [mark(0, 0, 100), mark(1, 100, 130)]
        for stream, (name, cat) in enumerate(
            [("gemm", "kernel"), ("gemm", "kernel"), ("Memcpy HtoD", "gpu_memcpy"), (FUSED, "kernel")], 30
        ):
            start = 0.0
            for gap, length in draw(st.lists(times, max_size=5)):
                start += gap
                events.append(kernel(start, length, name, stream=stream, cat=cat))
                start += length
        for start in (10, 110):
            arrival = draw(st.integers(0, 40_000)) / 1000
            events.append(all_reduce(start + arrival, 60 - arrival, ranks=2))
        write(folder / f"rank{rank}.json", *events, rank=rank, world_size=2)
    return folder
