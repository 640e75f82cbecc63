import os
from unittest import mock

import pytest
from msgspec.structs import replace

from overlaptop.fleet.job_session import RESTARTING, JobSelector, JobSession
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.processes import process_start_time
from overlaptop.wire import commands
from overlaptop.wire.joining import TurnedAway
from overlaptop.wire.messages import RankEnd

from .builders import BUCKET_CAP_MB, MS, T0, Clock, info, status, step, unmeasured, welcome
from .fakes import FakeHost, record


class World(FakeHost):
    """This machine's jobs, and the connections to hubs that were opened to them."""

    def __init__(self, *jobs):
        super().__init__("", Clock(), *jobs)

    def session(self, selector=None, *, readonly=False):
        return JobSession(
            selector, [self], readonly=readonly, clock_ns=self.here, monotonic_s=self.here.monotonic_s
        )

    def look_again(self, session):
        self.here.pass_s(1)
        return session.tick()


def live(world, session, number=0):
    session.tick()
    world.hub.say(welcome(world.hub.to.job), info(0), step(0, number), status())
    return session.tick()


@pytest.fixture
def joined():
    """The only job there is, and a session that is live."""
    world = World(record())
    session = world.session()
    live(world, session)
    return world, session


def test_only_job_is_waited_for_and_joined():
    world = World()
    session = world.session(readonly=True)
    with mock.patch.object(world, "list_jobs", side_effect=JobFolderError("/tmp/x belongs to uid 1")):
        assert session.tick().hub_note == "/tmp/x belongs to uid 1"
    snapshot = world.look_again(session)
    assert (snapshot.hub_state, snapshot.hub_note) == (HubState.WAITING, "waiting for a job")
    assert session.job_key is None
    world.jobs.append(record())
    assert world.look_again(session).hub_state is HubState.WAITING
    assert session.job_key == "job-1"
    snapshot = live(world, session)
    assert (snapshot.hub_state, snapshot.ranks[0].last.step) == (HubState.LIVE, 0)
    assert session.send(commands.make_setting(BUCKET_CAP_MB, 50)) == "this dashboard is read-only"
    assert (world.hub.sent, session.tick().commands) == ([], ())


def test_of_several_jobs_none_is_joined_until_one_is_chosen():
    world = World(record("job-1"), record("job-2"), record("job-3", script="other.py"))
    session = world.session(JobSelector(matches=lambda job: job.script == "train.py"))
    assert session.tick().hub_note == "2 jobs run here: choose one"
    assert ([job.job for job in session.jobs], world.hubs) == (["job-1", "job-2"], [])
    session.select("job-2")
    session.tick()
    assert [hub.to.job for hub in world.hubs] == ["job-2"]
    asking = world.session(JobSelector(key="job-4"))
    assert asking.tick().hub_note == "waiting for job job-4"
    world.jobs.append(record("job-4"))
    world.look_again(asking)
    assert asking.job_key == "job-4"


def test_hub_that_took_anothers_place_is_joined(joined):
    world, session = joined
    session.watch([1])
    assert world.hubs[0].watched == {1}
    world.hubs[0].dropped = 5
    world.hubs[0].alive = False
    assert session.tick().hub_state is HubState.LOST
    world.jobs[:] = [record(hub_pid=2)]
    world.look_again(session)
    assert world.hubs[0].closed
    assert world.hubs[1].watched == {1}
    world.hubs[1].dropped = 2
    snapshot = live(world, session, number=1)
    assert (snapshot.hub_state, snapshot.totals.dropped) == (HubState.LIVE, 7)
    assert [known.step for known in snapshot.ranks[0].history] == [0, 1]


@pytest.mark.parametrize("is_gone", [True, False])
def test_failed_ranks_that_torchrun_may_start_again_are_awaited(is_gone):
    started = 1 if is_gone else process_start_time(os.getpid())
    world = World(record(restarter_pid=os.getpid(), restarter_start_ticks=started))
    session = world.session()
    live(world, session)
    world.hubs[0].say(RankEnd(0, T0, False), status(ended=True))
    snapshot = session.tick()
    if is_gone:
        assert snapshot.hub_state is HubState.ENDED
        return
    assert (snapshot.hub_state, snapshot.hub_note) == (HubState.WAITING, RESTARTING)
    world.jobs[:] = [record(hub_pid=9)]
    assert world.look_again(session).hub_state is HubState.WAITING  # not the end of those before
    assert live(world, session, number=3).hub_state is HubState.LIVE
    world.hub.say(RankEnd(0, T0, True), status(ended=True))
    assert session.tick().hub_state is HubState.ENDED


def test_a_job_that_was_killed_together_with_its_hub_has_ended(joined):
    world, session = joined
    world.hubs[0].alive = False
    world.jobs.clear()
    assert world.look_again(session).hub_state is HubState.LOST
    world.gone.add("job-1")
    world.hubs[0].say(step(0, 1))
    snapshot = world.look_again(session)
    assert (snapshot.hub_state, snapshot.ranks[0].last.step) == (HubState.ENDED, 1)
    assert "gone" in snapshot.hub_note
    world.gone.clear()  # its pids were given to other processes
    assert world.look_again(session).hub_state is HubState.ENDED
    world.jobs[:] = [record("job-2", hub_pid=5)]
    world.look_again(session)
    assert (live(world, session).hub_state, session.job_key) == (HubState.LIVE, "job-2")


def test_silent_hub_makes_the_connection_stale(joined):
    world, session = joined
    for silent_s, state in ((6.5, HubState.STALE), (0.2, HubState.LIVE), (5.5, HubState.LIVE)):
        world.hubs[0].last_received_s = silent_s
        assert session.tick().hub_state is state
    mute = World(record())
    session = mute.session()
    session.tick()
    mute.here.pass_s(9)
    assert session.tick().hub_state is HubState.STALE


@pytest.mark.parametrize(("theirs", "older"), [(99, "this dashboard"), (0, "the job's agent")])
def test_another_protocol_names_the_side_that_is_older(theirs, older):
    world = World(record())
    session = world.session()
    session.tick()
    world.hubs[0].say(welcome(protocol=theirs))
    assert f"{older} is older" in session.tick().hub_note


def test_without_a_connection_or_room_nothing_is_sent():
    world = World(record())
    session = world.session()
    command = commands.make_setting(BUCKET_CAP_MB, 50)
    for _ in range(2):
        assert session.send(command) == "there is no connection to the job"
        session.tick()
    world.hubs[0].say(TurnedAway("64 dashboards watch this job: close one of them"))
    for _ in range(3):
        snapshot = session.tick()
        assert snapshot.hub_state is HubState.WAITING
        assert snapshot.hub_note == "64 dashboards watch this job: close one of them"
    assert session.send(command) == "there is no connection to the job"
    assert live(world, session).hub_state is HubState.LIVE
    assert session.send(command) == ""


def test_burst_is_asked_for_when_the_job_changes_or_one_asks(joined):
    world, session = joined
    session.watch([0], 3)
    assert world.hub.bursts == 3
    for number in range(1, 80):
        made = unmeasured(0, number, 80 if number < 40 else 120)
        world.hub.say(replace(made, start_ns=T0 + number * 120 * MS))
        session.tick()
    assert world.hub.bursts == 4
    session.watch([0], 4)
    assert (world.hub.watched, world.hub.bursts) == ({0}, 5)
