"""Overlap exactly as HolisticTraceAnalysis 0.5.0 computes it, to check our figures against it.

Its definition is ours: time with both communication and computation, divided by time with communication.
But it selects other events and rounds differently. Each difference that ``overlaptop analyze --help`` lists
is reproduced here, as in ``hta.analyzers.communication_analysis`` and the functions it calls. Also,
projections of annotations onto the GPU count as annotations: the window ends where the GPU itself reaches
the last step. A kernel shorter than a microsecond may get a length of -1 µs, and is kept.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from overlaptop.formats.chrome import MAX_NAME, NO_ARGS, Event, Scalar
from overlaptop.timeline.overlap import Breakdown

_NONE = -1  # No stream, or no correlation
_ON_GPU_WITHOUT_STREAM = ["Event Sync", "Context Sync"]
_STEP = "ProfilerStep"
_COMPUTE, _COMM, _OTHER = range(3)
_COMM_KERNEL = re.compile(r"^nccl.*Kernel")
_MEMORY_NAME = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
_NOT_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")
_MAX_US = float(1 << 52)  # Same bound as in our own reader, see activities.MAX_NS

Micros: TypeAlias = NDArray[np.float64]  # Times in µs
Table: TypeAlias = NDArray[np.void]
"""One rank's events as in HTA's table, with times rounded in the same way."""
_COLUMNS = np.dtype(
    [("name", object), ("start_us", float), ("end_us", float), ("stream", np.int64),
     ("correlation", np.int64)]
)  # fmt: skip


def _table(events: Sequence[Event]) -> Table:
    """Return one rank's events as HTA sees them. Raises OverflowError if a time is centuries away."""
    # Rounding depends on whether pandas makes the column floats.
    rounded = any(not isinstance(event.ts, int) for event in events)
    # HTA keeps more events. Those without a stream that are no launch and no step change nothing here.
    kept = [
        event
        for event in events
        if event.dur is not None
        and event.ts is not None
        and event.cat is not None
        and (
            ((args := event.args) is not None and (args.correlation is not None or args.stream is not None))
            or _STEP in (event.name or "")
        )
        and event.cat != "Trace"
    ]
    start_us = _micros([event.ts for event in kept])
    end_us = start_us + _micros([event.dur for event in kept])
    linked = [event.args or NO_ARGS for event in kept]
    table = np.empty(len(kept), _COLUMNS)
    table["name"] = [(event.name or "")[:MAX_NAME] for event in kept]
    table["start_us"] = np.ceil(start_us) if rounded else start_us
    table["end_us"] = np.floor(end_us) if rounded else end_us
    table["stream"] = [_whole(each.stream) for each in linked]
    table["correlation"] = [_whole(each.correlation) for each in linked]
    return table


def _micros(values: list[int | float | None]) -> Micros:
    us = np.array(values, dtype=np.float64)
    if us.size and np.abs(us).max() >= _MAX_US:
        raise OverflowError
    return us


class Figures(NamedTuple):
    """The figures of one rank's trace, with and without the window. `choose` decides which count.

    ``overlap`` is ``get_comm_comp_overlap``. From ``get_temporal_breakdown``: ``step_ns`` is kernel_time,
    ``compute_ns`` and ``idle_ns`` have the same names, and ``copy_only_ns`` is non_compute_time minus
    exposed communication (0 if lengths of -1 µs make it negative).
    """

    step_names: frozenset[str]  # Names of its ProfilerStep annotations
    windowed: Breakdown
    everything: Breakdown  # Without the window. Not computed if two names already rule it out.


def figures(events: Sequence[Event]) -> Figures:
    table = _table(events)
    step_names = frozenset(name for name in table["name"] if _STEP in name)
    windowed = _break_down(_in_window(table))
    return Figures(step_names, windowed, windowed if len(step_names) > 1 else _break_down(table))


def choose(ranks: Sequence[Figures]) -> list[Breakdown]:
    """Return one breakdown for each rank of a job, as HTA computes it from all of them."""
    windowed = len({name for rank in ranks for name in rank.step_names}) > 1
    return [rank.windowed if windowed else rank.everything for rank in ranks]


def _whole(value: Scalar) -> int:
    """Convert like ``int``. Missing values, non-numbers and huge ones become _NONE."""
    try:
        number = _NONE if value is None else int(value)
    except (ValueError, OverflowError):
        return _NONE
    return number if abs(number) < 1 << 62 else _NONE


def _in_window(table: Table) -> Table:
    without_stream = np.isin(table["name"], _ON_GPU_WITHOUT_STREAM)
    on_gpu = ((table["stream"] >= 0) & (table["correlation"] >= 0)) | without_stream
    is_step = np.array([_STEP in name for name in table["name"]], dtype=np.bool_) & ~on_gpu
    last_step_us = table["start_us"][is_step].max(initial=-np.inf)
    early = np.flatnonzero(~on_gpu & (table["start_us"] < last_step_us))
    # The join returns a GPU event once for each of the early events that share its correlation.
    on_gpu_at, of_early = np.flatnonzero(on_gpu), np.sort(table["correlation"][early])
    wanted = table["correlation"][on_gpu_at]
    times = np.searchsorted(of_early, wanted, side="right") - np.searchsorted(of_early, wanted)
    return table[np.append(np.repeat(on_gpu_at, times), early)]


def _break_down(table: Table) -> Breakdown:
    table = table[table["stream"] != _NONE]
    kinds = {name: _kind(name) for name in set(table["name"])}
    kind = np.array([kinds[name] for name in table["name"]], dtype=np.int8)
    compute, comm = _merged(table[kind == _COMPUTE]), _merged(table[kind == _COMM])
    busy = _merged(table)
    step_ns = _ns(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    idle_ns = step_ns - _length_ns(busy)
    compute_ns, comm_ns, hidden_ns = _length_ns(compute), _length_ns(comm), _together_ns(comm, compute)
    return Breakdown(
        step_ns=step_ns,
        compute_ns=compute_ns,
        comm_ns=comm_ns,
        hidden_ns=hidden_ns,
        exposed_ns=comm_ns - hidden_ns,
        compute_only_ns=compute_ns - hidden_ns,
        copy_only_ns=max(0, step_ns - idle_ns - compute_ns - (comm_ns - hidden_ns)),
        idle_ns=idle_ns,
    )


def _kind(name: str) -> int:
    if _COMM_KERNEL.match(name):
        return _COMM
    return _OTHER if _MEMORY_NAME.match(name) or _NOT_COMPUTE.match(name) else _COMPUTE


def _merged(table: Table) -> Micros:
    """Shape (n, 2): ``merge_kernel_intervals``, which does not change intervals of negative length."""
    if not table.size:
        return np.empty((0, 2))
    table = table[np.argsort(table["start_us"], kind="stable")]
    start_us, end_us = table["start_us"], table["end_us"]
    opens = np.append(True, start_us[1:] > np.maximum.accumulate(end_us)[:-1])
    first = np.flatnonzero(opens)
    return np.stack((start_us[first], np.maximum.reduceat(end_us, first)), axis=1)


def _length_ns(spans: Micros) -> int:
    return _ns((spans[:, 1] - spans[:, 0]).sum())


def _together_ns(comm: Micros, compute: Micros) -> int:
    """Return the time in which a 1 for communication and a 2 for computation add up to 3."""
    times_us = np.concatenate((comm.ravel(), compute.ravel()))
    changes = np.concatenate((np.tile((1, -1), len(comm)), np.tile((2, -2), len(compute))))
    order = np.argsort(times_us, kind="stable")
    running = np.cumsum(changes[order])[:-1]
    return _ns(np.diff(times_us[order])[running == 3].sum())


def _ns(us: np.float64) -> int:
    return round(1000 * float(us))
