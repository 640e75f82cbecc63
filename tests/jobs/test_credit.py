"""What a reader grants over lines of which the test knows what they carry."""

from collections import deque

import pytest

from overlaptop.jobs.credit import LOCAL_WINDOW_BYTES, Credit
from overlaptop.wire.protocol import JOIN_S

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
