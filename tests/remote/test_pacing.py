"""How much is written: no more than is allowed, and no more than the line carries off."""

from __future__ import annotations

import pytest

from overlaptop.relay.rate_limit import DEFAULT_BYTES_PER_S, Pace


class Connection:
    """A line that carries so much, and a far end that writes as its Pace allows; the near end says once a
    second what has arrived.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.now_s = 50.0
        self.bytes_per_s = bytes_per_s
        self.pace = Pace(lambda: self.now_s)
        self.written = self.arrived = 0.0
        self.most_under_way = 0.0

    def run(self, seconds: float, wanted_bytes_per_s: float = 1e9) -> float:
        """Bytes a second that arrived."""
        before = self.arrived
        for tick in range(int(seconds * 20)):
            self.now_s += 0.05
            room = min(self.pace.room_bytes(), wanted_bytes_per_s * 0.05)
            if room > 0:
                self.pace.wrote(int(room))
                self.written += int(room)
            self.arrived = min(self.written, self.arrived + self.bytes_per_s * 0.05)
            self.most_under_way = max(self.most_under_way, self.written - self.arrived)
            if tick % 20 == 19:
                self.pace.arrived(int(self.arrived))
        return (self.arrived - before) / seconds


def test_a_wide_line_carries_what_is_allowed_by_default():
    line = Connection(1e8)
    line.run(5)
    assert line.run(20) == pytest.approx(DEFAULT_BYTES_PER_S, rel=0.02)


@pytest.mark.parametrize("bytes_per_s", [10_000, 100_000])
def test_the_user_s_limit_is_kept_and_can_be_taken_back(bytes_per_s):
    line = Connection(1e8)
    line.pace.limit(bytes_per_s)
    line.run(5)
    assert line.run(20) == pytest.approx(bytes_per_s, rel=0.02)
    line.pace.limit(0)
    line.run(10)
    assert line.run(20) == pytest.approx(DEFAULT_BYTES_PER_S, rel=0.02)


@pytest.mark.parametrize("bytes_per_s", [5_000, 20_000, 200_000])
def test_a_narrow_line_is_filled_and_never_lags_by_more_than_a_few_seconds(bytes_per_s):
    line = Connection(bytes_per_s)
    line.run(60)
    line.most_under_way = 0.0
    assert line.run(60) == pytest.approx(bytes_per_s, rel=0.05)
    assert line.most_under_way <= 10_000 + 1.6 * bytes_per_s
    assert line.pace.bytes_per_s == pytest.approx(bytes_per_s, rel=0.1)


def test_a_line_that_was_not_filled_is_not_taken_for_a_narrow_one():
    line = Connection(1e8)
    line.run(10)
    line.run(60, wanted_bytes_per_s=5_000)
    assert line.run(1) == pytest.approx(DEFAULT_BYTES_PER_S * 1.25, rel=0.1), "with the burst"


def test_a_line_that_becomes_wide_is_found_out():
    line = Connection(20_000)
    line.run(30)
    line.bytes_per_s = 1e8
    line.run(10)
    assert line.run(10) == pytest.approx(DEFAULT_BYTES_PER_S, rel=0.02)


def test_a_line_that_becomes_narrow_is_found_out_before_much_is_under_way():
    line = Connection(1e8)
    line.run(30)
    line.bytes_per_s = 20_000
    line.run(30, wanted_bytes_per_s=40_000)
    assert line.most_under_way <= 150_000
    assert line.pace.bytes_per_s == pytest.approx(20_000, rel=0.1)


def test_a_line_on_which_nothing_arrives_gets_no_more_than_the_first_guess():
    line = Connection(0.0)
    line.run(60)
    assert line.written <= 110_000


def test_more_than_there_was_room_for_is_made_up_for():
    line = Connection(1e8)
    line.pace.limit(100_000)
    line.pace.wrote(1_000_000)
    line.arrived = line.written = 1_000_000
    line.pace.arrived(1_000_000)
    assert line.run(9) == 0.0
    assert line.run(10) > 50_000


@pytest.mark.parametrize("nonsense", [-1, 0, 1 << 62])
def test_a_count_that_cannot_be_is_passed_over(nonsense):
    line = Connection(1e8)
    line.pace.wrote(1000)
    before = line.pace.room_bytes()
    line.pace.arrived(nonsense)
    assert line.pace.room_bytes() == before
