"""Notices that several ranks give alike are one, which names them all."""

from overlaptop.fleet.notices import TOGETHER_NS, grouped
from overlaptop.wire.messages import Notice

from .builders import T0

FALLEN_BACK = "host instead of events: no CUDA"


def notice(rank, at_ns=T0, text=FALLEN_BACK, level="warning"):
    return Notice(rank, at_ns, level, text)


def test_same_text_of_several_ranks_is_one_notice():
    found = grouped([notice(2), notice(0, T0 + 1), notice(1, T0 - 1), notice(1, text="another")])
    assert [(each.text, each.ranks, each.at_ns) for each in found] == [
        (FALLEN_BACK, (0, 1, 2), T0 - 1),
        ("another", (1,), T0),
    ]


def test_what_comes_twice_later_or_at_other_levels_stays_apart():
    again = [notice(0), notice(0, T0 + 1), notice(1, T0 + TOGETHER_NS + 2), notice(1, level="error")]
    assert [each.ranks for each in grouped(again)] == [(0,), (0,), (1,), (1,)]
    assert grouped([]) == ()
