"""Reading a hub: what a reader grants and says, and the offset between two clocks."""

import random
from collections import deque
from contextlib import closing

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.jobs.clock import KEPT, ClockOffset
from overlaptop.jobs.credit import LOCAL_WINDOW_BYTES, Credit
from overlaptop.jobs.hub_reader import HubReader
from overlaptop.jobs.hub_socket import HubSocket
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.joining import Join, Pong
from overlaptop.wire.messages import Found
from overlaptop.wire.protocol import JOIN_S
from tests.fleet.builders import status
from tests.processes import eventually

FRAME_BYTES = 500
TICK_S = 0.02


class Line:
    """A hub that sends all it may, and a line that holds what it does not carry yet."""

    def __init__(self, bytes_per_s, latency_s, limit_bytes_per_s=512 << 10):
        self.now_s = self.join_due_s = 0.0
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s
        self.credit = Credit(lambda: self.now_s, limit_bytes_per_s)
        self.sent_bytes = self.received_bytes = self.allowed_bytes = 0
        self.grants: deque[tuple[float, int]] = deque()
        self._on_way: deque[float] = deque()
        self._free_s = 0.0

    @property
    def behind_s(self):
        """How late what is sent now arrives."""
        return max(self._free_s - self.now_s, 0.0) + self.latency_s

    def run(self, seconds):
        """How late it was at each moment."""
        late = []
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            while self._on_way and self._on_way[0] <= self.now_s:
                self._on_way.popleft()
                self.received_bytes += FRAME_BYTES
                self.credit.receive(FRAME_BYTES)
            grant = self.credit.due()
            if grant is not None or self.now_s >= self.join_due_s:
                grant = grant or self.credit.grant()
                self.join_due_s = self.now_s + JOIN_S
                self.credit.sent(grant)
                arrives_s = self.now_s + self.latency_s
                self.grants.append((arrives_s, grant.received_bytes + grant.window_bytes))
            while self.grants and self.grants[0][0] <= self.now_s:
                self.allowed_bytes = self.grants.popleft()[1]
            while self.sent_bytes < self.allowed_bytes:
                self._free_s = max(self._free_s, self.now_s) + FRAME_BYTES / self.bytes_per_s
                self._on_way.append(self._free_s + self.latency_s)
                self.sent_bytes += FRAME_BYTES
            late.append(self.behind_s)
        return late


@pytest.mark.parametrize("bytes_per_s", [30_000, 100_000, 400_000])
@pytest.mark.parametrize("latency_s", [0.005, 0.1])
def test_line_is_filled_with_at_most_a_second_in_flight(bytes_per_s, latency_s):
    line = Line(bytes_per_s, latency_s)
    line.run(5)
    before = line.received_bytes
    assert max(line.run(20)) < 1.3
    assert (line.received_bytes - before) / 20 > 0.9 * bytes_per_s


def test_a_limit_holds_whatever_the_line_carries():
    line = Line(10e6, 0.01, limit_bytes_per_s=20_000)
    line.run(20)
    before = line.received_bytes
    line.run(50)
    assert (line.received_bytes - before) / 50 == pytest.approx(20_000, rel=0.05)


def test_local_window_is_wide_and_restarts_with_each_welcome():
    credit = Credit(lambda: 0.0)
    assert credit.grant().window_bytes == LOCAL_WINDOW_BYTES
    credit.receive(LOCAL_WINDOW_BYTES // 2)
    grant = credit.due()
    assert grant is not None
    assert grant.received_bytes == LOCAL_WINDOW_BYTES // 2
    assert credit.due() == grant
    credit.sent(grant)
    assert credit.due() is None
    credit.restart()
    credit.receive(100)
    assert credit.due() is None
    assert credit.grant().received_bytes == 100


class SlowCarrier:
    """The connection to a hub that takes only messages of some types."""

    def __init__(self, accepted):
        self.accepted, self.sent = accepted, []
        self.readers = {}

    def put(self, _node, payload):
        message = decode(payload)
        is_accepted = isinstance(message, self.accepted)
        if is_accepted:
            self.sent.append(message)
        return is_accepted


def test_send_says_when_a_message_is_dropped():
    carrier, reader = SlowCarrier(Join), HubReader()
    reader.connect(carrier)
    reader.receive([encode(status())], 0)
    rules = [f"rule_{number}" for number in range(10)]
    kept = [rule for rule in rules if reader.send(Found(rule))]
    assert 0 < len(kept) < len(rules)
    carrier.accepted = Join | Found
    reader.send_due()
    assert [message.rule for message in carrier.sent if isinstance(message, Found)] == kept


def test_granted_frames_arrive_while_nobody_polls(socket_dir):
    """Else ZeroMQ answers no heartbeat, connects anew, and aborts the process at the next read."""
    path = socket_dir / "hub.sock"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as hub:
        for option, value in ((zmq.ROUTER_MANDATORY, 1), (zmq.SNDHWM, 1), (zmq.SNDTIMEO, 10_000)):
            hub.setsockopt(option, value)
        hub.linger = 0
        hub.bind(f"ipc://{path}")
        with closing(HubSocket(path)) as socket:
            HubReader().connect(socket)
            eventually(lambda: socket.receive() or hub.poll(0))
            identity, *_ = hub.recv_multipart()
            for _ in range(40):
                hub.send_multipart([identity, bytes(64 << 10)])


MS = 1_000_000
S = 1_000_000_000
UNIX_NS = 1_700_000_000 * S


def trip(clock, second, offset_ns, there_ns, back_ns, held_ns=0):
    """One round trip that begins in that second, and takes so long there, back, and at the host."""
    at_ns = UNIX_NS + second * S
    received_ns = at_ns + there_ns + offset_ns
    clock.add(Pong(at_ns, received_ns, received_ns + held_ns), at_ns + there_ns + held_ns + back_ns)


def test_an_offset_is_held_while_nothing_contradicts_it():
    """What was shifted by it would otherwise move with every round trip."""
    noise = random.Random(3)
    clock = ClockOffset()
    trip(clock, 0, S, 1 * MS, 1 * MS)
    held = clock.offset_ns
    for second in range(1, 60):
        trip(clock, second, S, noise.randint(MS, 3 * MS), noise.randint(MS, 3 * MS))
        assert clock.offset_ns == held


@pytest.mark.parametrize("drift", [-80e-6, 80e-6])
@given(seed=st.integers(0, 2**32), slowest_ms=st.integers(1, 40))
@settings(max_examples=10)
def test_offset_of_drifting_clocks_stays_within_the_residual(drift, seed, slowest_ms):
    noise, clock = random.Random(seed), ClockOffset()
    for second in range(120):
        offset_ns = 50 * MS + int(drift * second * S)
        ways = [noise.randint(MS // 10, slowest_ms * MS) for _ in range(2)]
        trip(clock, second, offset_ns, *ways)
        assert clock.offset_ns is not None
        assert clock.residual_ns is not None
        now_ns = offset_ns + int(drift * sum(ways))
        assert abs(clock.offset_ns - now_ns) <= clock.residual_ns + 1
    assert clock.residual_ns < 6 * slowest_ms * MS


@pytest.mark.parametrize("step_ns", [-3600 * S, -50 * MS, 50 * MS, 3600 * S])
def test_a_clock_that_is_set_is_followed_at_once(step_ns):
    there, here = ClockOffset(), ClockOffset()
    for second in range(KEPT):
        trip(there, second, 0, MS, MS)
    trip(there, KEPT, step_ns, 5 * MS, 5 * MS)
    trip(here, 0, 0, MS, MS)
    trip(here, -step_ns // S, step_ns, 5 * MS, 5 * MS)
    assert (there.offset_ns, here.offset_ns, here.residual_ns) == (step_ns, step_ns, 5 * MS)


def test_a_trip_that_cannot_have_been_so_is_passed_over():
    clock = ClockOffset()
    # Answered before it was received, back before it was sent, longer there than it was away.
    for pong, back_ns in ((Pong(100, 50, 40), 200), (Pong(200, 50, 60), 100), (Pong(100, 50, 500), 200)):
        clock.add(pong, back_ns)
    assert clock.offset_ns is None
