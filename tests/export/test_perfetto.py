"""The Perfetto trace, decoded with Perfetto's own protos, says to the nanosecond what `analyze` says."""

import io
from collections import defaultdict

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from overlaptop.export import perfetto
from overlaptop.export.timeline import JobTimeline, from_snapshot
from overlaptop.fleet.window import HISTORY_STEPS
from overlaptop.timeline.spans import clip, from_pairs, intersection, length_ns
from tests.export.jobs import recorded
from tests.fleet.builders import GB, info, sample, status, unmeasured, welcome
from tests.fleet.fakes import FakeSession
from tests.tui.waits import waiting_job


class Decoded:
    """Slices and counters by process and track, as ``(start_ns, end_ns, event)`` and ``(at_ns, value)``."""

    def __init__(self, job: JobTimeline) -> None:
        written = io.BytesIO()
        perfetto.write(job, written)
        self.trace = Trace.FromString(written.getvalue())
        described = {
            packet.track_descriptor.uuid: packet.track_descriptor
            for packet in self.trace.packet
            if packet.HasField("track_descriptor")
        }
        self.slices = defaultdict(list)
        self.counters = defaultdict(list)
        opened = {}
        for packet in self.trace.packet:
            if not packet.HasField("track_event"):
                continue
            event, track = packet.track_event, described[packet.track_event.track_uuid]
            process = described[track.parent_uuid].process.process_name.split(" (")[0]
            where = int(process.removeprefix("rank ")), track.name
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert track.uuid not in opened
                opened[track.uuid] = packet.timestamp, event
            elif event.type == TrackEvent.TYPE_SLICE_END:
                self.slices[where].append(
                    (opened[track.uuid][0], packet.timestamp, opened.pop(track.uuid)[1])
                )
            else:
                self.counters[where].append((packet.timestamp, event.counter_value))
        assert not opened

    def spans(self, rank: int, track: str, *names: str):
        found = [(start, end) for start, end, event in self.slices[rank, track] if event.name in names]
        assert length_ns(from_pairs(found)) == sum(end - start for start, end in found)
        return from_pairs(found)


def arguments(event: TrackEvent) -> dict:
    return {each.name: getattr(each, each.WhichOneof("value")) for each in event.debug_annotations}


def require_same_figures(job: JobTimeline) -> None:
    found = Decoded(job)
    for record in job.step_records():
        step = next(
            each for each in found.slices[record.rank, "steps"] if each[2].name == f"step {record.step}"
        )
        start_ns, end_ns, event = step
        said = arguments(event)
        parts = [
            clip(found.spans(record.rank, "communication", name), start_ns, end_ns)
            for name in ("waiting", "transfer", "not attributed")
        ]
        comm = from_pairs([span for part in parts for span in part.tolist()])
        compute = found.spans(record.rank, "compute", "compute")
        lengths = tuple(map(length_ns, parts))
        assert end_ns - start_ns == record.step_ns
        assert length_ns(comm) == sum(lengths) == record.comm_ns
        assert length_ns(intersection(comm, compute)) == record.hidden_ns == said["hidden_ns"]
        assert lengths == (record.wait_ns or 0, record.transfer_ns or 0, record.not_attributed_ns)
        assert said.get("overlap") == record.overlap
        fused = found.spans(record.rank, "compute and communicate", "fused")
        assert length_ns(clip(fused, start_ns, end_ns)) == (record.fused_ns or 0)


def test_a_flow_ties_each_collective_over_its_ranks() -> None:
    job = recorded("ddp_25mb")
    found = Decoded(job)
    ranks_of = defaultdict(set)
    for (rank, _), slices in found.slices.items():
        for start_ns, _, event in slices:
            for flow in event.flow_ids:
                ranks_of[flow].add((rank, start_ns))
    expected = [
        {(rank, start_ns) for rank, (start_ns, _) in each.spans.items()} for each in job.collectives
    ]
    assert sorted(ranks_of.values(), key=min) == sorted(expected, key=min)
    _, _, event = found.slices[0, "collectives"][-1]
    assert arguments(event)["late_rank"] == 2


def test_a_running_jobs_drawn_steps_have_the_same_figures() -> None:
    job = from_snapshot(waiting_job(late=lambda _: 2).tick())
    assert [len(each.drawn) for each in job.ranks] == [8] * 4
    assert {record.late_rank for record in job.step_records()} == {2}
    require_same_figures(job)


def test_steps_that_left_the_history_keep_their_collectives() -> None:
    session = waiting_job(late=lambda _: 2)
    measured = from_snapshot(session.tick())
    session.say(*(unmeasured(rank, 8 + number) for number in range(HISTORY_STEPS) for rank in range(4)))
    job = from_snapshot(session.tick())
    assert len(job.ranks[0].steps) > HISTORY_STEPS
    assert job.collectives == measured.collectives
    assert not any(len(each.communication["not attributed"]) for each in job.ranks)


def test_links_are_counters_of_their_samples() -> None:
    session = FakeSession(welcome(), info(0), sample(0, 1, nvlink=(0, GB)), status())
    found = Decoded(from_snapshot(session.tick()))
    assert [value for _, value in found.counters[0, "NVLink tx"]] == [GB]
    assert (0, "launch lead") not in found.counters
