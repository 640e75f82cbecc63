"""What several ranks say alike of one event is told once."""

from __future__ import annotations

from overlaptop.wire.hub_notices import ECHO_S, Echoes
from overlaptop.wire.messages import Notice

CHANGED = "set bucket_cap_mb 50, asked by ann"


def said(rank, text=CHANGED, level="info"):
    return Notice(rank, 1, level, text)


def test_the_same_words_of_other_ranks_are_an_echo_and_other_words_are_not():
    echoes = Echoes()
    assert [echoes.is_echo(said(rank), 0.0) for rank in (2, 0, 1)] == [False, True, True]
    assert not echoes.is_echo(said(0, "another"), 0.0)
    assert not echoes.is_echo(said(0, level="warning"), 0.0)


def test_what_the_first_one_says_again_and_what_is_said_later_is_news():
    echoes = Echoes()
    assert not echoes.is_echo(said(2), 0.0)
    assert not echoes.is_echo(said(2), ECHO_S)
    assert echoes.is_echo(said(1), 2 * ECHO_S)
    assert not echoes.is_echo(said(1), 2 * ECHO_S + 1)


def test_texts_without_end_take_bounded_memory():
    echoes = Echoes()
    for number in range(1000):
        echoes.is_echo(said(0, str(number)), 0.0)
    assert len(echoes._first) <= 256
    assert echoes.is_echo(said(1, "999"), 0.0)
    assert not echoes.is_echo(said(1, "0"), 0.0)


def test_a_dashboard_hears_what_all_ranks_of_a_node_say_once(hubs, make_rank, make_viewer):
    hubs.start()
    ranks = [make_rank(number).greet() for number in range(3)]
    viewer = make_viewer()
    viewer.hear_ranks(3)
    for rank in ranks:
        rank.send(said(rank.rank), said(rank.rank, f"mine: {rank.rank}"))
    for rank in ranks:
        viewer.hear(Notice, lambda heard, text=f"mine: {rank.rank}": heard.text == text)
    late = make_viewer()
    late.hear_ranks(3)
    late.hear(Notice, lambda heard: heard.text == "mine: 2")
    for each in (viewer, late):
        assert [heard.text for heard in each.of(Notice)].count(CHANGED) == 1
