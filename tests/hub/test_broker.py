"""Which of the commands that dashboards give are passed on, when, and which are refused."""

from __future__ import annotations

import time

import pytest

from overlaptop.hub.commands import PATIENCE_S, RETURN_S, CommandBroker
from overlaptop.wire import commands
from overlaptop.wire.codec import decode
from overlaptop.wire.endpoints import JobRecord, job_dir
from overlaptop.wire.knobs import Search
from overlaptop.wire.messages import LEASE_S, Command, CommandOutcome, CommandReport
from tests.fleet.builders import BUCKET_CAP_MB


class Office:
    """A desk, the ranks and dashboards that hear it, and a clock that only the test moves."""

    def __init__(self, *, awaits_ranks=0):
        job_dir("job-1", create=True)
        record = JobRecord(
            1, "job-1", "train.py", "/", "here", 2, "python", 1, 1, 1, 1, 1, "dash-1.sock", ()
        )
        self.ranks = (0, 1)
        self.told, self.published = [], []
        self.desk = CommandBroker(
            record,
            connected_ranks=lambda: self.ranks,
            send_to_ranks=lambda payload: self.told.append(commands.in_words(decode(payload))),
            publish=lambda payload: self.published.append(decode(payload)),
            lease_s=LEASE_S,
            awaits_ranks=awaits_ranks,
        )

    def take(self, command):
        self.desk.take_command(command)
        self.desk.settle()

    def of(self, kind):
        return [each for each in self.published if isinstance(each, kind)]

    def end(self, command, state="changed"):
        for rank in self.ranks:
            report = CommandReport(rank, command.id, command.name, 1, state, 7, "")
            self.desk.receive(report, time.monotonic())
        self.desk.settle()

    def later(self, seconds):
        self.desk.tick(time.monotonic() + seconds)
        self.desk.settle()


@pytest.fixture
def office(socket_dir):
    return Office()


def setting(value, search=None):
    return commands.make_setting(BUCKET_CAP_MB, value, search=search.id if search else "")


def search_at(office):
    search = commands.make_search(BUCKET_CAP_MB)
    office.desk.take_search(search)
    return search


def test_what_a_person_asks_is_told_to_all_ranks_and_dashboards_at_once(office):
    for command in (setting(50), setting(100), commands.make(commands.CAPTURE, {"steps": 1})):
        office.take(command)
    assert office.told == ["set bucket_cap_mb 50", "set bucket_cap_mb 100", "capture (steps 1)"]
    assert [commands.in_words(each) for each in office.of(Command)] == office.told


def test_during_a_searchs_own_change_a_persons_waits_and_the_searchs_next_is_refused(office):
    search = search_at(office)
    own, persons = setting(50, search), setting(100)
    for command in (own, persons, persons, commands.make(commands.CAPTURE, {"steps": 1})):
        office.take(command)
    assert office.told == ["set bucket_cap_mb 50", "capture (steps 1)"]  # no knob: that waits for nothing
    office.take(setting(60, search))
    refused = office.of(CommandOutcome)[-1]
    assert refused.reason == f"rank 0 refused: {persons.by} changes something just now"
    assert [each.state for each in refused.ranks] == ["refused", "refused"]
    office.end(own)
    assert office.told[2:] == ["set bucket_cap_mb 100"]
    office.take(persons)  # asked again, as by a dashboard that heard nothing
    office.end(persons)
    assert office.told[3:] == []
    assert office.of(Search)[-1].over
    assert decode(office.desk.replay()[-1]) == office.of(Search)[-1]


def test_a_persons_change_does_not_wait_for_ever(office):
    search = search_at(office)
    office.take(setting(50, search))
    office.take(setting(100))
    office.later(PATIENCE_S - 1)
    assert len(office.told) == 1
    office.later(PATIENCE_S + 1)
    assert office.told[1:] == ["set bucket_cap_mb 100"]


def test_a_change_that_waits_when_the_hub_ends_is_not_made_behind_its_back(office):
    office.take(setting(50, search_at(office)))
    office.take(setting(100))
    office.desk.close()
    assert office.told == ["set bucket_cap_mb 50"]


def test_those_who_wait_are_bounded_and_keep_their_order(office):
    search = search_at(office)
    own = setting(50, search)
    office.take(own)
    for value in range(100, 110):
        office.take(setting(value))
    assert office.told[1:] == ["set bucket_cap_mb 108", "set bucket_cap_mb 109"]
    office.end(own)
    assert office.told[3:] == [f"set bucket_cap_mb {value}" for value in range(100, 108)]


def test_a_silent_search_is_not_undone_where_a_person_has_changed_its_knob_meanwhile(office):
    search = search_at(office)
    own, persons = setting(50, search), setting(100)
    office.take(own)
    office.take(persons)
    office.later(LEASE_S + 1)
    office.end(own)
    office.later(LEASE_S + 2)
    office.end(persons)
    office.later(LEASE_S + 3)
    assert office.told == ["set bucket_cap_mb 50", "set bucket_cap_mb 100"]
    assert office.of(Search)[-1].over


def test_a_silent_search_is_undone_once_and_by_the_hub(office):
    search = search_at(office)
    office.later(LEASE_S - 1)
    assert office.told == []
    office.later(LEASE_S + 1)
    office.later(LEASE_S + 2)
    assert office.told == ["restore bucket_cap_mb"]
    (undone,) = office.of(Command)
    assert undone.by == f"{search.by} (silent; undone by the hub)"


def test_without_ranks_nothing_is_undone_and_after_a_hubs_death_not_before_all_are_back(socket_dir):
    search_at(Office())  # of a hub that dies
    office = Office(awaits_ranks=2)
    office.ranks = ()
    office.later(RETURN_S + 1)
    office.ranks = (0,)
    office.later(LEASE_S + 1)
    assert office.told == []
    office.ranks = (0, 1)
    office.later(LEASE_S + 2)
    assert office.told == ["restore bucket_cap_mb"]


def test_a_rank_that_never_comes_back_is_not_awaited_for_ever(socket_dir):
    search_at(Office())
    office = Office(awaits_ranks=2)
    office.ranks = (0,)
    office.later(RETURN_S - 1)
    assert office.told == []
    office.later(RETURN_S + 1)
    assert office.told == ["restore bucket_cap_mb"]


def test_without_ranks_a_refusal_has_nobody_to_speak_for(office):
    office.ranks = ()
    office.take(setting(50, commands.make_search(BUCKET_CAP_MB)))
    assert (office.told, [type(each) for each in office.published]) == ([], [Command, CommandOutcome])
    assert office.published[1].reason == "no rank is there to answer"
