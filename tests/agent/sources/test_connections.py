"""When the events source measures phases only, for want of hardware connections."""

from __future__ import annotations

import contextlib
import socket

import pytest

from overlaptop.agent.sources.assemble import RecordedCollective, RecordedStep
from overlaptop.agent.sources.base import CollectiveCall, Wait
from overlaptop.agent.sources.connections import (
    FEW_CONNECTIONS,
    MPS_CONNECTIONS,
    ONE_CONNECTION,
    Connections,
)
from overlaptop.agent.sources.events import EventsSource

MS = 1_000_000
CALL = CollectiveCall("allreduce_", 64, "0", True, "nccl", "cuda", 0)


def ddp_step(chance, *, held_back=False, waits=False, bound_by="compute"):
    """Six buckets of a backward pass: the marks when they were issued, and when their all-reduces ended."""
    step = RecordedStep(0, True, 0, end=200 * MS)
    at_ns, free_ns = 20 * MS, 0
    for _ in range(6):
        length_ns = round((3 if bound_by == "compute" else 14) * MS * chance.uniform(0.8, 1.2))
        end_ns = max(at_ns, free_ns) + length_ns
        step.collectives.append(RecordedCollective(CALL, at_ns, end_ns, "0", begins_on_compute=True))
        computed_ns = at_ns + round(8 * MS * chance.uniform(0.5, 1.5))
        if waits:
            step.waits.append((computed_ns, max(computed_ns, end_ns), Wait.PURE))
        at_ns = max(computed_ns, end_ns) if held_back or waits else computed_ns
        if held_back:  # the work of this bucket was behind the event of the one before it
            at_ns = end_ns + round(chance.uniform(2_000, 30_000))
        free_ns = end_ns
    return step


@pytest.mark.parametrize("bound_by", ["compute", "communication"])
def test_marks_that_pass_just_as_the_collective_before_them_ends_show_few_connections(bound_by):
    chance = random.Random(0)
    connections = Connections()
    for _ in range(3):
        connections.note(ddp_step(chance, held_back=True, bound_by=bound_by))
    assert connections.few


@pytest.mark.parametrize("bound_by", ["compute", "communication"])
@pytest.mark.parametrize("waits", [False, True])
def test_healthy_jobs_show_none_not_even_where_they_wait_for_each_collective_themselves(bound_by, waits):
    chance = random.Random(1)
    connections = Connections()
    for _ in range(200):
        connections.note(ddp_step(chance, waits=waits, bound_by=bound_by))
        assert not connections.few


class Stream:
    """A stream that has come to some moment of the device's."""

    numbers = itertools.count()

    def __init__(self, **_options):
        self.cuda_stream = next(self.numbers)
        self.at_ns = 0


class Event:
    """Recorded on a stream that is there already."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        self.at_ns = stream.at_ns

    def query(self):
        return True

    def elapsed_time(self, later):
        return (later.at_ns - self.at_ns) / 1e6


class Work:
    """A collective that ends at some moment; the current stream waits for it."""

    def __init__(self, end_ns):
        self.end_ns = end_ns

    def get_future(self):
        return self

    def wait(self):
        torch.cuda.current_stream(0).at_ns = self.end_ns


@pytest.fixture
def compute(monkeypatch):
    """The compute stream of a device that is not there."""
    stream = Stream()
    current = [stream]
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda one: current.__setitem__(0, one))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda device: current[0].cuda_stream, raising=False
    )
    return stream


@pytest.mark.parametrize(
    ("mps", "connections", "reason"),
    [
        (False, None, ""), (True, None, MPS_CONNECTIONS), (True, "8", ""), (True, "1", ONE_CONNECTION),
        (False, "1", ONE_CONNECTION),
    ],
)  # fmt: skip
def test_few_connections_are_known_by_their_variable_and_by_the_socket_of_mps(
    monkeypatch, tmp_path, mps, connections, reason
):
    with socket.socket(socket.AF_UNIX) as daemon, contextlib.chdir(tmp_path):
        if mps:
            daemon.bind("control")  # a path of its own may be too long
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
        if connections:
            monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
        source = EventsSource(False, None, 0)
    assert (source.reason, source.detail_every == 0) == (reason, bool(reason))
