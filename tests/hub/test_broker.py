"""Which of the commands that dashboards give are passed on, when, and which are refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from overlaptop.hub.commands import PATIENCE_S, RETURN_S, CommandBroker
from overlaptop.jobs.folder import job_dir
from overlaptop.wire import commands
from overlaptop.wire.codec import decode
from overlaptop.wire.commands import Command, CommandOutcome, CommandReport
from overlaptop.wire.knobs import Search
from overlaptop.wire.protocol import LEASE_S
from tests.fleet.builders import BUCKET_CAP_MB
from tests.fleet.fakes import record


class Scene:
    """A broker, the ranks and dashboards that receive from it, and a clock that only the test moves."""

    def __init__(self, *, awaits_ranks=0):
        job_dir("job-1", create=True)
        self.ranks, self.now_s = (0, 1), 0.0
        self.sent, self.published = [], []
        self.broker = CommandBroker(
            record(),
            connected_ranks=lambda: self.ranks,
            send_to_ranks=lambda payload: self.sent.append(commands.in_words(decode(payload))),
            publish=lambda payload: self.published.append(decode(payload)),
            lease_s=LEASE_S,
            awaits_ranks=awaits_ranks,
            clock_s=lambda: self.now_s,
        )

    def take(self, command):
        self.broker.take(command)
        self.broker.settle()

    def of(self, kind):
        return [each for each in self.published if isinstance(each, kind)]

    def end(self, command, state="changed"):
        for rank in self.ranks:
            report = CommandReport(rank, command.id, command.name, 1, state, 7, "")
            self.broker.receive(report)
        self.broker.settle()

    def at(self, now_s):
        self.now_s = now_s
        self.broker.tick()
        self.broker.settle()


@pytest.fixture
def scene(socket_dir):
    return Scene()


def setting(value, search=None):
    return commands.make_setting(BUCKET_CAP_MB, value, search=search.id if search else "")


def search_on(scene):
    search = commands.make_search(BUCKET_CAP_MB)
    scene.take(search)
    return search


def test_a_persons_command_goes_to_all_ranks_and_dashboards_at_once(scene):
    for command in (setting(50), setting(100), commands.make(commands.CAPTURE, {"steps": 1})):
        scene.take(command)
    assert scene.sent == ["set bucket_cap_mb 50", "set bucket_cap_mb 100", "capture (steps 1)"]
    assert [commands.in_words(each) for each in scene.of(Command)] == scene.sent


def test_during_a_searchs_own_change_a_persons_waits_and_the_searchs_next_is_refused(scene):
    search = search_on(scene)
    own, persons = setting(50, search), setting(100)
    for command in (own, persons, persons, commands.make(commands.CAPTURE, {"steps": 1})):
        scene.take(command)
    assert scene.sent == ["set bucket_cap_mb 50", "capture (steps 1)"]  # no knob: that waits for nothing
    scene.take(setting(60, search))
    refused = scene.of(CommandOutcome)[-1]
    assert refused.reason == f"rank 0 refused: {persons.by} changes something just now"
    assert [each.state for each in refused.ranks] == ["refused", "refused"]
    scene.end(own)
    assert scene.sent[2:] == ["set bucket_cap_mb 100"]
    scene.take(persons)  # asked again, as by a dashboard that got no answer
    scene.end(persons)
    assert scene.sent[3:] == []
    assert scene.of(Search)[-1].over
    assert decode(scene.broker.replay()[-1]) == scene.of(Search)[-1]


def test_a_persons_change_does_not_wait_for_ever(scene):
    search = search_on(scene)
    scene.take(setting(50, search))
    scene.take(setting(100))
    scene.at(PATIENCE_S - 1)
    assert len(scene.sent) == 1
    scene.at(PATIENCE_S + 1)
    assert scene.sent[1:] == ["set bucket_cap_mb 100"]


def test_a_change_that_waits_when_the_hub_ends_is_not_made_behind_its_back(scene):
    scene.take(setting(50, search_on(scene)))
    scene.take(setting(100))
    scene.broker.close()
    assert scene.sent == ["set bucket_cap_mb 50"]


def test_those_who_wait_are_bounded_and_keep_their_order(scene):
    search = search_on(scene)
    own = setting(50, search)
    scene.take(own)
    for value in range(100, 110):
        scene.take(setting(value))
    assert scene.sent[1:] == ["set bucket_cap_mb 108", "set bucket_cap_mb 109"]
    scene.end(own)
    assert scene.sent[3:] == [f"set bucket_cap_mb {value}" for value in range(100, 108)]


def test_a_silent_search_is_not_undone_where_a_person_has_changed_its_knob_meanwhile(scene):
    search = search_on(scene)
    own, persons = setting(50, search), setting(100)
    scene.take(own)
    scene.take(persons)
    scene.at(LEASE_S + 1)
    scene.end(own)
    scene.at(LEASE_S + 2)
    scene.end(persons)
    scene.at(LEASE_S + 3)
    assert scene.sent == ["set bucket_cap_mb 50", "set bucket_cap_mb 100"]
    assert scene.of(Search)[-1].over


def test_a_silent_search_is_undone_once_and_by_the_hub(scene):
    search = search_on(scene)
    scene.at(LEASE_S - 1)
    assert scene.sent == []
    scene.at(LEASE_S + 1)
    scene.at(LEASE_S + 2)
    assert scene.sent == ["restore bucket_cap_mb"]
    (undone,) = scene.of(Command)
    assert undone.by == f"{search.by} (silent; undone by the hub)"


def test_without_ranks_nothing_is_undone_and_after_a_hubs_death_not_before_all_are_back(socket_dir):
    search_on(Scene())  # of a hub that dies
    scene = Scene(awaits_ranks=2)
    scene.ranks = ()
    scene.at(RETURN_S + 1)
    scene.ranks = (0,)
    scene.at(LEASE_S + 1)
    assert scene.sent == []
    scene.ranks = (0, 1)
    scene.at(LEASE_S + 2)
    assert scene.sent == ["restore bucket_cap_mb"]


def test_a_rank_that_never_comes_back_is_not_awaited_for_ever(socket_dir):
    search_on(Scene())
    scene = Scene(awaits_ranks=2)
    scene.ranks = (0,)
    scene.at(RETURN_S - 1)
    assert scene.sent == []
    scene.at(RETURN_S + 1)
    assert scene.sent == ["restore bucket_cap_mb"]


def test_a_persons_change_that_fails_or_is_of_another_knob_leaves_the_search(scene):
    search = search_on(scene)
    refused, of_another = setting(100), commands.make_setting(replace(BUCKET_CAP_MB, name="depth"), 2)
    for change, state in ((refused, "refused"), (of_another, "changed")):
        scene.take(change)
        scene.end(change, state)
    scene.take(setting(50, search))
    assert scene.sent[2:] == ["set bucket_cap_mb 50"]
    assert scene.of(Search) == [search]


def test_without_ranks_a_refusal_has_nobody_to_speak_for(scene):
    scene.ranks = ()
    scene.take(setting(50, commands.make_search(BUCKET_CAP_MB)))
    assert (scene.sent, [type(each) for each in scene.published]) == ([], [Command, CommandOutcome])
    assert scene.published[1].reason == "no rank is there to answer"
