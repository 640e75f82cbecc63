"""Records that contradict their neighbours, their stream or their launch."""

import numpy as np
import pytest

from overlaptop.timeline import coherence
from overlaptop.timeline.coherence import NOT_LAUNCHED_NS

US, HOUR = 1000, 3_600_000_000_000


def checked(*rows, **more):
    """Rows of (start, end) in µs on one stream, launched 5 µs before, unless they say otherwise."""
    rows = [(*row, {}) if not isinstance(row[-1], dict) else row for row in rows]
    start, end = (np.array([row[at] for row in rows], dtype=np.int64) * US for at in (0, 1))
    launched = [row[2].get("launched", row[0] - 5) for row in rows]
    return coherence.check(
        start,
        end,
        np.array([row[2].get("queue", 0) for row in rows]),
        identity=np.array([row[2].get("name", at) for at, row in enumerate(rows)]),
        launched_ns=np.array([NOT_LAUNCHED_NS if at is None else at * US for at in launched]),
        **more,
    )


GOOD = [(at * 100, at * 100 + 90) for at in range(1, 11)]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        pytest.param((500, 497), coherence.ENDS_FIRST, id="negative duration"),
        pytest.param((-86_400_000_000, -86_399_999_000), coherence.FAR_AWAY, id="a day early"),
        pytest.param((86_400_000_000, 86_400_000_090), coherence.FAR_AWAY, id="a day late"),
        pytest.param((0, 10, {"launched": 5_000}), coherence.BEFORE_LAUNCH, id="before its launch"),
        pytest.param((*GOOD[-1], {"name": len(GOOD) - 1}), coherence.DUPLICATE, id="twice"),
        pytest.param((950, 7_200_000_000), coherence.FAR_AWAY, id="of two hours"),
    ],
)
def test_an_impossible_record_is_left_out(bad, why):
    found = checked(*GOOD, bad)
    assert found.found == {why: 1}
    assert np.count_nonzero(~found.keep) == 1
    assert found.end_ns[found.keep].max() == 1090 * US


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(GOOD, id="sound"),
        pytest.param([(0, 104), (100, 200)], id="dependent launch"),
        pytest.param([(0, 900), (100, 200, {"queue": 1})], id="another stream"),
        pytest.param([(0, 100), (0, 0)], id="nothing"),
        pytest.param([(0, 90), (2 * HOUR // US, 2 * HOUR // US + 90)], id="two halves"),
    ],
)
def test_what_may_be_is_kept(rows):
    found = checked(*rows)
    assert not found.found
    assert found.end_ns.tolist() == [row[1] * US for row in rows]
    assert not checked((0, 900), (100, 200), concurrent=np.array([True, True])).found


def test_clocks_of_cpu_and_gpu_that_disagree_leave_no_record_out():
    rows = [(at * 100, at * 100 + 90, {"launched": at * 100 + 4_000}) for at in range(1, 11)]
    assert checked(*rows).keep.all()
    starts = np.array([row[0] for row in rows]) * US
    assert coherence.clock_skew_ns(starts, starts + 4_000 * US) == 4_000 * US
    assert coherence.clock_skew_ns(starts, starts - 4_000 * US) == 0
    found = checked(*rows, (-600_000, -599_980, {"launched": 4_500}))
    assert (found.found, found.keep[-1]) == ({coherence.BEFORE_LAUNCH: 1}, False)


def test_each_kind_is_said_once_with_how_often():
    found = checked(*GOOD, (500, 497), (600, 590), (0, 1_600_000))
    assert coherence.describe(found.found) == [
        "2 GPU records left out: each ends before it begins",
        "1 GPU record cut: it ran on while the next one of its stream ran",
    ]


def alternating(every_us, comm_from_us, length_us):
    """Compute and communication of one stream, in turn, and which one communicates."""
    rows = [
        (at * every_us + begin_us, at * every_us + begin_us + length_us)
        for at in range(10)
        for begin_us in (0, comm_from_us)
    ]
    return rows, np.arange(len(rows)) % 2 == 1


def test_records_are_kept_where_streams_are_not_told_apart():
    rows, communicates = alternating(1_300, 500, 700)
    found = checked(*rows, communicates=communicates)
    assert found.found == {coherence.SEVERAL_STREAMS: 10}
    assert found.end_ns.tolist() == [end * US for _, end in rows]


def test_a_long_kernel_is_cut_beside_communication_of_its_stream():
    rows, communicates = alternating(200, 100, 90)
    rows[4] = (rows[4][0], 1_600_000)
    found = checked(*rows, communicates=communicates)
    assert found.found == {coherence.RUNS_OVER: 1}
    assert found.end_ns[4] == rows[5][0] * US
