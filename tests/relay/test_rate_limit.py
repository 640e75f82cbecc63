"""How much is written: no more than is allowed, and no more than the connection carries."""

from __future__ import annotations

import pytest

from overlaptop.relay.rate_limit import DEFAULT_BYTES_PER_S, RateLimit


class Simulated:
    """A connection that carries so much, a relay that sends as its limit allows, and a client that
    acknowledges once a second what has arrived.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.now_s = 50.0
        self.bytes_per_s = bytes_per_s
        self.limit = RateLimit(lambda: self.now_s)
        self.sent = self.arrived = 0.0
        self.most_in_flight = 0.0

    def run(self, seconds: float, wanted_bytes_per_s: float = 1e9) -> float:
        """Bytes a second that arrived."""
        before = self.arrived
        for tick in range(int(seconds * 20)):
            self.now_s += 0.05
            room = min(self.limit.room_bytes(), wanted_bytes_per_s * 0.05)
            if room > 0:
                self.limit.sent(int(room))
                self.sent += int(room)
            self.arrived = min(self.sent, self.arrived + self.bytes_per_s * 0.05)
            self.most_in_flight = max(self.most_in_flight, self.sent - self.arrived)
            if tick % 20 == 19:
                self.limit.acknowledge(int(self.arrived))
        return (self.arrived - before) / seconds


@pytest.mark.parametrize("bytes_per_s", [10_000, 100_000])
def test_the_user_s_limit_is_kept_and_can_be_taken_back(bytes_per_s):
    connection = Simulated(1e8)
    connection.limit.limit(bytes_per_s)
    connection.run(5)
    assert connection.run(20) == pytest.approx(bytes_per_s, rel=0.02)
    connection.limit.limit(0)
    connection.run(10)
    assert connection.run(20) == pytest.approx(DEFAULT_BYTES_PER_S, rel=0.02)


@pytest.mark.parametrize("bytes_per_s", [5_000, 20_000, 200_000])
def test_a_narrow_connection_is_filled_and_never_lags_by_more_than_a_few_seconds(bytes_per_s):
    connection = Simulated(bytes_per_s)
    connection.run(60)
    connection.most_in_flight = 0.0
    assert connection.run(60) == pytest.approx(bytes_per_s, rel=0.05)
    assert connection.most_in_flight <= 10_000 + 1.6 * bytes_per_s
    assert connection.limit.bytes_per_s == pytest.approx(bytes_per_s, rel=0.1)


def test_a_connection_that_was_not_filled_is_not_taken_for_a_narrow_one():
    connection = Simulated(1e8)
    connection.run(10)
    connection.run(60, wanted_bytes_per_s=5_000)
    assert connection.run(1) == pytest.approx(DEFAULT_BYTES_PER_S * 1.25, rel=0.1), "with the burst"


def test_a_connection_that_becomes_narrow_or_wide_is_found_out_before_much_is_in_flight():
    connection = Simulated(1e8)
    connection.run(30)
    connection.bytes_per_s = 20_000
    connection.run(30, wanted_bytes_per_s=40_000)
    assert connection.most_in_flight <= 150_000
    assert connection.limit.bytes_per_s == pytest.approx(20_000, rel=0.1)
    connection.bytes_per_s = 1e8
    connection.run(10)
    assert connection.run(10) == pytest.approx(DEFAULT_BYTES_PER_S, rel=0.02)


def test_a_connection_on_which_nothing_arrives_gets_no_more_than_the_first_guess():
    connection = Simulated(0.0)
    connection.run(60)
    assert connection.sent <= 110_000


def test_more_than_there_was_room_for_is_made_up_for():
    connection = Simulated(1e8)
    connection.limit.limit(100_000)
    connection.limit.sent(1_000_000)
    connection.arrived = connection.sent = 1_000_000
    connection.limit.acknowledge(1_000_000)
    assert connection.run(9) == 0.0
    assert connection.run(10) > 50_000


@pytest.mark.parametrize("nonsense", [-1, 0, 1 << 62])
def test_a_count_that_cannot_be_is_passed_over(nonsense):
    connection = Simulated(1e8)
    connection.limit.sent(1000)
    before = connection.limit.room_bytes()
    connection.limit.acknowledge(nonsense)
    assert connection.limit.room_bytes() == before
