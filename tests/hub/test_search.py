"""A search for a knob's best value: one at a time, and undone by the hub where it falls silent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlaptop.hub.search import SearchLease
from overlaptop.wire import commands
from overlaptop.wire.codec import encode
from overlaptop.wire.knobs import Knob, Search
from overlaptop.wire.messages import HubStatus
from overlaptop.wire.protocol import LEASE_S
from tests.fleet.builders import BUCKET_CAP_MB
from tests.processes import eventually

OTHER_KNOB = Knob("accumulation", 4, "4", "4", 1, 8)


@pytest.fixture
def lease(tmp_path):
    return SearchLease(tmp_path / "search.msgpack", 0.0)


def search_for(knob=BUCKET_CAP_MB):
    return commands.make_search(knob)


# What the hub makes of what it receives


def test_the_first_search_is_published_once_and_stands_as_it_began_until_it_has_ended_for_good(lease):
    mine, other = search_for(), search_for()
    assert lease.renew(mine, 0.0) == mine
    for ignored in (mine, other, replace(other, over=True), replace(mine, undo_value=400)):
        assert lease.renew(ignored, 1.0) is None
    assert lease.state == lease.held == mine
    assert lease.renew(replace(mine, over=True), 2.0) == replace(mine, over=True) == lease.state
    assert lease.renew(mine, 2.2) is None
    assert lease.renew(other, 2.5) == other


def test_a_search_lapses_after_its_lease_and_not_before(lease):
    assert not lease.has_lapsed(1e9)
    lease.renew(search_for(), 10.0)
    assert not lease.has_lapsed(10.0 + LEASE_S)
    assert lease.has_lapsed(10.1 + LEASE_S)


def test_only_the_search_that_is_held_may_change_and_only_its_knob(lease):
    mine, other = search_for(), search_for()
    change = commands.make_setting(BUCKET_CAP_MB, 50, search=mine.id)
    assert lease.objection(change) == "the search that asks has ended"
    lease.renew(mine, 0.0)
    assert lease.objection(change) == ""
    assert "searches for the best bucket_cap_mb" in lease.objection(replace(change, search=other.id))
    assert lease.objection(commands.make_setting(OTHER_KNOB, 2, search=mine.id)) == (
        "the search that asks is about bucket_cap_mb"
    )


def test_the_next_hub_finds_the_search_and_gives_it_a_lease_of_its_own(tmp_path):
    path = tmp_path / "search.msgpack"
    search = search_for()
    SearchLease(path, 0.0).renew(search, 0.0)
    successor = SearchLease(path, 100.0)
    assert successor.held == search
    assert not successor.has_lapsed(100.0 + LEASE_S)
    assert successor.has_lapsed(100.1 + LEASE_S)
    successor.end()
    assert SearchLease(path, 200.0).held is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", b"x" * 100_000, encode(HubStatus(0, 0, 0, job_ended=False)), encode(search_for())[:-1]],
    ids=["empty", "no msgpack", "long", "another message", "cut off"],
)
def test_a_file_that_holds_no_search_is_as_none(tmp_path, content):
    path = tmp_path / "search.msgpack"
    path.write_bytes(content)
    assert SearchLease(path, 0.0).held is None


def test_a_folder_that_cannot_be_written_costs_the_search_nothing_but_the_file():
    lease = SearchLease(Path("/proc/none/search.msgpack"), 0.0)
    assert lease.renew(search_for(), 0.0) is not None
    assert lease.end().over


# The hub as a process


def test_every_dashboard_receives_a_search_and_its_end_and_so_does_a_late_one(hubs, make_rank, make_viewer):
    hubs.start("--search-lease-s=100")
    rank = make_rank(0).greet()
    searching, watching = make_viewer(), make_viewer()
    for viewer in (searching, watching):
        viewer.await_ranks(1)
    search = search_for()
    searching.hub.renew(search)
    for viewer in (searching, watching, late := make_viewer()):
        assert viewer.receive(Search) == search
    searching.hub.renew(replace(search, over=True))
    searching.close()  # at once: the last word still leaves
    for viewer in (watching, late, make_viewer()):
        viewer.receive(Search, lambda each: each == replace(search, over=True))
    watching.ask(commands.make_setting(BUCKET_CAP_MB, 50))
    assert commands.in_words(rank.next_command()) == "set bucket_cap_mb 50"  # and nothing was undone


def test_where_the_hub_dies_too_the_next_one_undoes_once_all_ranks_are_back(hubs, make_rank, make_viewer):
    first = hubs.start("--search-lease-s=100")
    ranks = [make_rank(number).greet() for number in (0, 1)]
    searching = make_viewer()
    searching.await_ranks(2)
    eventually(lambda: len(hubs.record().rank_pids) == 2)
    search = search_for()
    searching.hub.renew(search)
    searching.receive(Search)
    os.kill(first.hub_pid, signal.SIGKILL)
    searching.close()
    for rank in ranks:
        assert rank.is_closed_by_hub()

    hubs.start("--search-lease-s=1")
    back = make_rank(0).greet()
    watching = make_viewer()
    assert watching.receive(Search) == search
    watching.await_statuses(2)
    back.listen()
    assert back.commands == []  # one rank alone could only fail
    make_rank(1).greet()
    assert commands.in_words(back.next_command()) == "restore bucket_cap_mb"
    watching.receive(Search, lambda each: each.id == search.id and each.over)
