"""A Perfetto trace of all ranks: a process for each, with tracks, counters and flows along collectives.

Steps have their record as arguments. On the track "communication" the slices "waiting", "transfer" and "not
attributed" are disjoint and cover all communication, so every figure can be computed from them.
"""

from collections.abc import Mapping, Sequence
from itertools import count, product
from typing import IO

from msgspec.structs import asdict
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from overlaptop.export.timeline import JobTimeline, RankTimeline
from overlaptop.fleet.records import collective_record, step_record
from overlaptop.text import printable
from overlaptop.timeline.arrivals import Collective
from overlaptop.timeline.spans import Spans

_SEQUENCE = 1  # The only writer of packets
_FIRST_PID = 1  # The UI shows process 0 as the kernel's idle task
_VALUES = ((bool, "bool_value"), (int, "int_value"), (float, "double_value"))
"""Types of arguments, with their field of an annotation; others become text."""


def write(job: JobTimeline, out: IO[bytes]) -> None:
    """Write the trace, packet by packet. Timestamps are Unix time in ns, as of the trace's boot clock."""
    writer = _Writer(out)
    writer.begin(job.start_ns)
    flows = {id(each): flow for flow, each in enumerate(job.collectives, 1) if len(each.spans) > 1}
    for each in job.ranks:
        _write_rank(writer, job, each, flows)


def _write_rank(writer: "_Writer", job: JobTimeline, each: RankTimeline, flows: Mapping[int, int]) -> None:
    info, steps = each.info, each.steps
    where = ", ".join(filter(None, (info.host, info.device)))
    process = writer.process(_FIRST_PID + each.rank, f"rank {each.rank}" + (f" ({where})" if where else ""))
    track = writer.track(process, "steps")
    for step in steps:
        arguments = asdict(step_record(job.job, info, step, job.waits.get(step.step)))
        writer.slice(
            track, f"step {step.step}", step.start_ns, step.start_ns + step.step_ns, arguments=arguments
        )
    writer.spans(process, each.computing, {each.computing: each.lanes.compute})
    writer.spans(process, "communication", each.communication)
    for row in job.rows_of(each.rank):
        track = writer.track(process, "collectives")
        for span, found in row:
            writer.slice(
                track, found.op, *span,
                flow=flows.get(id(found)), arguments=_arguments(found, each.rank),
            )  # fmt: skip
    writer.spans(process, "copies", {"copy": each.lanes.copy})
    writer.spans(process, "compute and communicate", {"fused": each.lanes.fused})
    leads = [
        (step.start_ns + step.step_ns, lead) for step in steps if (lead := step.launch_lead_ns) is not None
    ]
    writer.counter(process, "launch lead", "ns", leads)
    for link, direction in product(("NVLink", "PCIe", "NIC"), ("rx", "tx")):
        field = f"{link.lower()}_{direction}_bytes_per_s"
        rates = [
            (sample.at_ns, rate) for sample in each.samples if (rate := getattr(sample, field)) is not None
        ]
        writer.counter(process, f"{link} {direction}", "bytes/s", rates)


def _arguments(found: Collective, rank: int) -> dict[str, object]:
    record = collective_record("", 0, found)
    return {
        "group": record.group,
        "bytes": record.bytes,
        "wait_ns": found.wait_ns(rank),
        "transfer_ns": found.transfer_ns(rank),
        "late_rank": record.late_rank,
        "bus_bandwidth_bytes_per_s": record.bus_bandwidth_bytes_per_s,
        "not_attributed": record.not_attributed,
    }


class _Writer:
    """Writes tracks and events as packets."""

    def __init__(self, out: IO[bytes]) -> None:
        self._builder = StreamingTraceProtoBuilder(out)
        self._uuids = count(1)

    def begin(self, at_ns: int) -> None:
        """Declare that the trace's clock shows Unix time."""
        snapshot = protos.ClockSnapshot()
        for clock in (protos.BUILTIN_CLOCK_BOOTTIME, protos.BUILTIN_CLOCK_REALTIME):
            snapshot.clocks.add(clock_id=clock, timestamp=at_ns)
        self._put(timestamp=at_ns, clock_snapshot=snapshot)

    def process(self, pid: int, name: str) -> int:
        descriptor = protos.TrackDescriptor(uuid=next(self._uuids))
        descriptor.process.pid = pid
        descriptor.process.process_name = printable(name)
        descriptor.child_ordering = protos.TrackDescriptor.EXPLICIT
        return self._describe(descriptor)

    def track(self, process: int, name: str, unit: str = "") -> int:
        """Return a new track, of a counter if it has a unit. The UI lays those of one name out below each
        other.
        """
        descriptor = protos.TrackDescriptor(uuid=next(self._uuids), parent_uuid=process, name=name)
        descriptor.sibling_order_rank = descriptor.uuid
        if unit:
            descriptor.counter.unit_name = unit
        return self._describe(descriptor)

    def spans(self, process: int, track: str, lanes: Mapping[str, Spans]) -> None:
        """Write disjoint spans in order on a track of their own, if there are any."""
        found = sorted((*span, name) for name, spans in lanes.items() for span in spans.tolist())
        if found:
            uuid = self.track(process, track)
            for start_ns, end_ns, name in found:
                self.slice(uuid, name, start_ns, end_ns)

    def slice(
        self,
        track: int,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        flow: int | None = None,
        arguments: Mapping[str, object] = {},
    ) -> None:
        """Write a slice. Those of one track must come in order."""
        begin = protos.TrackEvent(type=protos.TrackEvent.TYPE_SLICE_BEGIN, track_uuid=track, name=name)
        if flow is not None:
            begin.flow_ids.append(flow)
        for key, value in arguments.items():
            if value is None or value == "":
                continue
            kind = next((kind for of, kind in _VALUES if isinstance(value, of)), "string_value")
            begin.debug_annotations.add(name=key, **{kind: value if kind != "string_value" else str(value)})
        end = protos.TrackEvent(type=protos.TrackEvent.TYPE_SLICE_END, track_uuid=track)
        self._put(timestamp=start_ns, track_event=begin)
        self._put(timestamp=end_ns, track_event=end)

    def counter(self, process: int, name: str, unit: str, values: Sequence[tuple[int, int]]) -> None:
        """Write a counter's values at their Unix times in ns, if there are any."""
        if not values:
            return
        uuid = self.track(process, name, unit)
        kind = protos.TrackEvent.TYPE_COUNTER
        for at_ns, value in values:
            event = protos.TrackEvent(type=kind, track_uuid=uuid, counter_value=value)
            self._put(timestamp=at_ns, track_event=event)

    def _describe(self, descriptor: protos.TrackDescriptor) -> int:
        self._put(track_descriptor=descriptor)
        uuid: int = descriptor.uuid
        return uuid

    def _put(self, **fields: object) -> None:
        self._builder.write_packet(protos.TracePacket(trusted_packet_sequence_id=_SEQUENCE, **fields))
