"""A search for a knob's best value: one at a time, and undone by the hub where it falls silent."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlaptop.hub.search import SearchLease
from overlaptop.wire import commands
from overlaptop.wire.bounds import MAX_AUTHOR_CHARS
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.commands import Command, CommandOutcome
from overlaptop.wire.knobs import Knob, Search
from overlaptop.wire.messages import HubStatus
from overlaptop.wire.protocol import LEASE_S
from tests.fleet.builders import BUCKET_CAP_MB

OTHER_KNOB = Knob("accumulation", 4, "4", "4", 1, 8)


@pytest.fixture
def lease(tmp_path):
    return SearchLease(tmp_path / "search.msgpack", 0.0)


def search_for(knob=BUCKET_CAP_MB):
    return commands.make_search(knob)


# What the hub makes of what it hears


def test_the_first_search_is_told_once_and_stands(lease):
    mine, other = search_for(), search_for()
    assert lease.renew(mine, 0.0) == mine
    assert lease.renew(mine, 1.0) is None
    assert lease.renew(other, 1.5) is None
    assert lease.renew(replace(other, over=True), 1.6) is None
    assert lease.state == mine
    assert lease.renew(replace(mine, over=True), 2.0) == replace(mine, over=True) == lease.state
    assert lease.renew(other, 2.5) == other


def test_a_search_that_has_ended_is_not_taken_up_again(lease):
    search = search_for()
    lease.renew(search, 0.0)
    lease.end()
    assert lease.renew(search, 1.0) is None
    assert lease.held is None


def test_a_search_keeps_the_value_that_it_began_with_whatever_it_says_later(lease):
    search = search_for()
    lease.renew(search, 0.0)
    assert lease.renew(replace(search, undo_value=400), 1.0) is None
    assert lease.held == search


def test_a_search_lapses_after_its_lease_and_not_before(lease):
    assert not lease.has_lapsed(1e9)
    lease.renew(search_for(), 10.0)
    assert not lease.has_lapsed(10.0 + LEASE_S)
    assert lease.has_lapsed(10.1 + LEASE_S)
    lease.extend(3.0)
    assert not lease.has_lapsed(12.9 + LEASE_S)
    assert lease.has_lapsed(13.1 + LEASE_S)


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


def test_a_link_or_a_fifo_in_the_files_place_is_not_followed(tmp_path):
    target = tmp_path / "target"
    SearchLease(target, 0.0).renew(search_for(), 0.0)
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "fifo")
    assert SearchLease(target, 0.0).held is not None
    assert SearchLease(tmp_path / "link", 0.0).held is None
    assert SearchLease(tmp_path / "fifo", 0.0).held is None


def test_a_folder_that_cannot_be_written_costs_the_search_nothing_but_the_file():
    lease = SearchLease(Path("/proc/none/search.msgpack"), 0.0)
    assert lease.renew(search_for(), 0.0) is not None
    assert lease.end().over


def test_what_a_search_goes_back_to_is_what_the_script_gave_where_that_still_stands():
    assert search_for().undo_value is None
    assert search_for(replace(BUCKET_CAP_MB, value=50, value_text="50")).undo_value == 50
    assert (
        search_for(replace(BUCKET_CAP_MB, value=None, value_text="2.5", original_text="2.5")).undo_value
        is None
    )
    with pytest.raises(ValueError, match=r"bucket_cap_mb is 2\.5: no command can go back to that"):
        search_for(replace(BUCKET_CAP_MB, value=None, value_text="2.5"))


@pytest.mark.parametrize(
    ("undo_value", "words"), [(None, "restore bucket_cap_mb"), (50, "set bucket_cap_mb 50")]
)
def test_the_hub_undoes_in_the_name_of_the_one_that_fell_silent(undo_value, words):
    search = replace(search_for(), undo_value=undo_value, by="x" * MAX_AUTHOR_CHARS)
    command = commands.make_undoing(search)
    assert decode(encode(command)) == command
    assert commands.in_words(command) == words
    assert command.search == search.id
    assert command.by.endswith(" (silent; undone by the hub)")


def test_the_hubs_of_several_nodes_undo_a_search_by_the_same_command():
    for search in (search_for(), replace(search_for(), id="a" * 40)):
        first, second = commands.make_undoing(search), commands.make_undoing(search)
        assert first.id == second.id != search.id
        assert decode(encode(first)) == first


# The hub as a process

LEASE = "--search-lease-s=1"


class Holder:
    """A dashboard that searches: it holds whenever it is asked for what it has heard."""

    def __init__(self, viewer, search):
        self.viewer, self.search, self._due_s = viewer, search, 0.0

    def poll(self):
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + 0.2
            assert self.viewer.link.hold(self.search)
        self.viewer.poll()


@pytest.fixture
def make_job(hubs, make_rank, make_viewer):
    """A hub, two ranks, and two dashboards that have joined."""

    def make(*options):
        hubs.start(*options)
        ranks = [make_rank(number).greet() for number in (0, 1)]
        viewers = [make_viewer(), make_viewer()]
        for viewer in viewers:
            viewer.hear_ranks(2)
        return ranks, viewers

    return make


@pytest.fixture
def job(make_job):
    return make_job()


@pytest.fixture
def impatient_job(make_job):
    """Whose hub undoes soon what nobody holds."""
    return make_job(LEASE)


def end_of(search):
    return lambda heard: heard.id == search.id and heard.over


def test_every_dashboard_hears_of_a_search_and_of_its_end_and_so_does_a_late_one(job, make_viewer):
    _, (searching, watching) = job
    search = search_for()
    searching.link.hold(search)
    for viewer in (searching, watching, late := make_viewer()):
        assert viewer.hear(Search) == search
    searching.link.hold(replace(search, over=True))
    for viewer in (searching, watching, late):
        viewer.hear(Search, end_of(search))
    assert make_viewer().hear(Search) == replace(search, over=True)


def test_a_second_search_is_not_taken_and_what_it_asks_is_refused_in_every_ranks_name(job):
    ranks, (first, second) = job
    mine, other = search_for(), search_for()
    first.link.hold(mine)
    second.hear(Search)
    second.link.hold(other)
    foreign = commands.make_setting(BUCKET_CAP_MB, 400, search=other.id)
    own = commands.make_setting(BUCKET_CAP_MB, 50, search=mine.id)
    second.ask(foreign)
    outcome = second.hear_end(foreign)
    assert [each.state for each in outcome.ranks] == ["refused", "refused"]
    assert outcome.reason == f"rank 0 refused: {mine.by} searches for the best bucket_cap_mb"
    first.ask(own)
    assert [rank.next_command().id for rank in ranks] == [own.id, own.id]
    first.hear(Command, lambda heard: heard.id == own.id)
    assert first.of(Search) == [mine]


def test_a_person_may_change_the_knob_during_a_search_and_ends_it_by_that(job):
    ranks, (searching, person) = job
    search = search_for()
    searching.link.hold(search)
    person.hear(Search)
    change = commands.make_setting(BUCKET_CAP_MB, 100)
    person.ask(change)
    for rank in ranks:
        assert rank.next_command().id == change.id
        rank.answer(change, "accepted")
    searching.hear(CommandOutcome, lambda outcome: outcome.state == "accepted")
    assert searching.of(Search) == [search]  # asked for is not yet made
    for rank in ranks:
        rank.answer(change)
    searching.hear(Search, end_of(search))
    late = commands.make_setting(BUCKET_CAP_MB, 7, search=search.id)
    searching.link.hold(search)
    searching.ask(late)
    assert searching.hear_end(late).reason == "rank 0 refused: the search that asks has ended"


def test_a_persons_change_that_fails_or_is_of_another_knob_leaves_the_search(job):
    ranks, (searching, person) = job
    search = search_for()
    searching.link.hold(search)
    person.hear(Search)
    for change, state in (
        (commands.make_setting(BUCKET_CAP_MB, 100), "refused"),
        (commands.make_setting(OTHER_KNOB, 2), "changed"),
    ):
        person.ask(change)
        for rank in ranks:
            assert rank.next_command().id == change.id
            rank.answer(change, state)
        searching.hear_end(change)
    own = commands.make_setting(BUCKET_CAP_MB, 50, search=search.id)
    searching.link.hold(search)
    searching.ask(own)
    assert ranks[0].next_command().id == own.id
    assert searching.of(Search) == [search]


def test_a_search_that_falls_silent_is_undone_once_after_what_it_asked_for_last(impatient_job):
    ranks, (searching, watching) = impatient_job
    search = search_for(replace(BUCKET_CAP_MB, value=50, value_text="50"))
    change = commands.make_setting(BUCKET_CAP_MB, 400, search=search.id)
    searching.link.hold(search)
    searching.ask(change)
    for rank in ranks:
        assert rank.next_command().id == change.id
        rank.answer(change, "accepted")
    searching.close()
    watching.hear_statuses(2)
    ranks[0].listen()
    assert ranks[0].commands == []  # the ranks would refuse another one now
    for rank in ranks:
        rank.answer(change)
    undone = ranks[0].next_command()
    assert (commands.in_words(undone), undone.search) == ("set bucket_cap_mb 50", search.id)
    assert undone.by == f"{search.by} (silent; undone by the hub)"
    assert ranks[1].next_command() == undone
    watching.hear(Search, end_of(search))
    watching.hear(Command, lambda heard: heard.id == undone.id)
    watching.hear_statuses(2)
    ranks[0].listen()
    assert ranks[0].commands == []


def test_a_search_that_has_said_that_it_is_over_is_not_undone(impatient_job):
    ranks, (searching, watching) = impatient_job
    search = search_for()
    searching.link.hold(search)
    searching.hear(Search)
    searching.link.hold(replace(search, over=True))
    searching.close()  # at once: the last word still leaves
    watching.hear(Search, end_of(search))
    watching.hear_statuses(2)
    ranks[0].listen()
    assert ranks[0].commands == []


def test_where_the_hub_dies_too_the_next_one_undoes_once_all_ranks_are_back(
    hubs, make_rank, make_viewer, wait_until
):
    first = hubs.start(LEASE)
    ranks = [make_rank(number).greet() for number in (0, 1)]
    searching = make_viewer()
    searching.hear_ranks(2)
    wait_until(lambda: len(hubs.record().rank_pids) == 2)
    search = search_for()
    searching.link.hold(search)
    searching.hear(Search)
    os.kill(first.hub_pid, signal.SIGKILL)
    searching.close()
    for rank in ranks:
        assert rank.is_closed_by_hub()

    hubs.start(LEASE)
    back = make_rank(0).greet()
    watching = make_viewer()
    assert watching.hear(Search) == search
    watching.hear_statuses(2)
    back.listen()
    assert back.commands == []  # one rank alone could only fail
    make_rank(1).greet()
    assert commands.in_words(back.next_command()) == "restore bucket_cap_mb"
    watching.hear(Search, end_of(search))


def test_a_search_goes_on_with_the_next_hub(hubs, make_rank, make_viewer, wait_until):
    first = hubs.start()
    make_rank(0).greet()
    holder = Holder(make_viewer(), search_for())
    holder.viewer.hear_ranks(1)
    wait_until(lambda: holder.poll() or holder.viewer.of(Search))
    os.kill(first.hub_pid, signal.SIGKILL)
    (Path(os.environ["OVERLAPTOP_DIR"]) / "job-1" / "search.msgpack").unlink()  # nor does it find it there
    hubs.start()
    rank = make_rank(0).greet()
    holder.viewer = make_viewer()
    holder.viewer.hear_ranks(1)
    wait_until(lambda: holder.poll() or holder.viewer.of(Search))
    change = commands.make_setting(BUCKET_CAP_MB, 50, search=holder.search.id)
    assert holder.viewer.link.send(change)
    wait_until(lambda: holder.poll() or rank.listen() or rank.commands)
    assert [each.id for each in rank.commands] == [change.id]


def test_a_hub_that_stood_still_does_not_take_its_own_silence_for_the_searchs(make_job, hubs, wait_until):
    ranks, (searching, _) = make_job("--search-lease-s=2")
    holder = Holder(searching, search_for())
    wait_until(lambda: holder.poll() or searching.of(Search))
    pid = hubs.record().hub_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(2.5)  # longer than the hub's own tick explains, and than the lease
    finally:
        os.kill(pid, signal.SIGCONT)
    said = len(searching.messages)
    wait_until(
        lambda: holder.poll() or sum(isinstance(each, HubStatus) for each in searching.messages[said:]) >= 3
    )
    ranks[0].listen()
    assert ranks[0].commands == []
    assert searching.of(Search) == [holder.search]
