"""JobSession: which job it joins, and what it shows while hubs, hosts and connections come and go."""

import os
import signal
import time
from statistics import median
from unittest import mock

import pytest
from msgspec.structs import replace

from overlaptop.fleet.job_session import (
    NOT_CONNECTED,
    READONLY,
    RESTARTING,
    JobSelector,
    JobSession,
)
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.processes import process_start_time
from overlaptop.wire import commands
from overlaptop.wire.joining import TurnedAway
from overlaptop.wire.messages import RankEnd
from tests.processes import eventually

from .builders import BUCKET_CAP_MB, MS, T0, S, report, status, unmeasured, welcome
from .fakes import Hosts, record

CHANGE = commands.make_setting(BUCKET_CAP_MB, 50)


def states(snapshot):
    return [(node.name, node.hub_state.value, node.note) for node in snapshot.nodes]


# Which job


def test_only_job_is_waited_for_and_joined():
    here = Hosts(readonly=True)
    here.list()
    with mock.patch.object(here.host, "list_jobs", side_effect=JobFolderError("/tmp/x belongs to uid 1")):
        assert here.session.tick().hub_note == "/tmp/x belongs to uid 1"
    snapshot = here.look()
    assert (snapshot.hub_state, snapshot.hub_note) == (HubState.WAITING, "waiting for a job")
    here.list(record())
    assert (here.look().hub_state, here.session.job_key) == (HubState.WAITING, "job-1")
    snapshot = here.live()
    assert (snapshot.hub_state, snapshot.ranks[0].last.step) == (HubState.LIVE, 0)
    assert here.session.send(CHANGE) == READONLY
    assert (here.host.hub.sent, here.session.tick().commands) == ([], ())


def test_of_several_jobs_none_is_joined_until_one_is_chosen():
    jobs = record("job-1"), record("job-2"), record("job-3", script="other.py")
    here = Hosts(jobs=jobs, selector=JobSelector(matches=lambda job: job.script == "train.py"))
    assert here.session.tick().hub_note == "2 jobs run here: choose one"
    assert ([job.job for job in here.session.jobs], here.host.hubs) == (["job-1", "job-2"], [])
    here.session.select("job-2")
    here.session.tick()
    assert [hub.to.job for hub in here.host.hubs] == ["job-2"]
    here.start(JobSelector(key="job-4"))
    assert here.session.tick().hub_note == "waiting for job job-4"
    here.list(record("job-4"))
    here.look()
    assert here.host.hub.to.job == "job-4"


def test_the_same_key_on_two_hosts_is_one_job_and_the_only_one():
    two = Hosts("gpu-a", "gpu-b")
    two.session.watch([1, 3])
    snapshot = two.live()
    assert (two.session.job_key, snapshot.hub_state) == ("job-1", HubState.LIVE)
    assert [view.node for view in snapshot.ranks] == ["gpu-a", "gpu-a", "gpu-b", "gpu-b"]
    assert states(snapshot) == [("gpu-a", "live", ""), ("gpu-b", "live", "")]
    assert (snapshot.nodes[0].offset_ns, snapshot.nodes[0].residual_ns) == (5_000_000, 100_000)
    assert [(job.job, job.host) for job in two.session.jobs] == [("job-1", "gpu-a, gpu-b")]
    assert [host.hub.watched for host in two.hosts] == [{1}, {3}]
    two.session.close()
    assert all(host.closed and host.hub.closed for host in two.hosts)
    assert len(two.look().ranks) == 4


def test_chosen_job_is_kept_while_its_only_host_is_out_of_reach():
    two = Hosts("gpu-a", "gpu-b")
    two.hosts[1].jobs = [record("job-2", started_ns=T0 + S)]
    snapshot = two.session.tick()
    assert (snapshot.hub_state, snapshot.hub_note) == (HubState.WAITING, "2 jobs run there: choose one")
    assert [(job.job, job.host) for job in two.session.jobs] == [("job-2", "gpu-b"), ("job-1", "gpu-a")]
    assert states(snapshot) == [("gpu-a", "waiting", "1 job there"), ("gpu-b", "waiting", "1 job there")]
    two.session.select("job-2")
    snapshot = two.live(job="job-2")
    assert (two.hosts[0].hubs, snapshot.hub_state) == ([], HubState.LIVE)
    assert states(snapshot)[0] == ("gpu-a", "waiting", "the job is not there")
    assert not snapshot.nodes[0].lost
    two.hosts[1].cut()
    snapshot = two.look()  # the same script runs on gpu-a
    assert (two.session.job_key, snapshot.hub_state) == ("job-2", HubState.LOST)
    assert snapshot.hub_note == "gpu-b: the line broke"


# A restart


def test_restarted_job_is_followed_and_the_same_script_beside_it_is_not():
    two = Hosts("gpu-a", "gpu-b", jobs=[record(), record("job-2")], selector=JobSelector(key="job-1"))
    two.live()
    two.look()
    for host in two.hosts:
        host.hub.say(*(RankEnd(rank, T0, True) for rank in two.ranks(host)), status(ended=True))
        host.hub.alive = False
    two.list(record("job-2"))
    two.look()
    snapshot = two.look()
    assert snapshot.hub_state is HubState.ENDED
    assert states(snapshot)[0] == ("gpu-a", "ended", "if train.py is started again, it is shown here")
    two.list(record("job-2"), record("job-7", hub_pid=9), record("job-8", script="other.py"))
    snapshot = two.look()
    assert (two.session.job_key, snapshot.hub_state) == ("job-7", HubState.WAITING)
    snapshot = two.live([0, 3], job="job-7")
    assert (snapshot.job.job, snapshot.hub_state) == ("job-7", HubState.LIVE)
    assert [known.step for known in snapshot.ranks[0].history] == [0, 3]


@pytest.mark.parametrize("is_gone", [True, False])
def test_failed_ranks_that_torchrun_may_start_again_are_awaited(is_gone):
    started = 1 if is_gone else process_start_time(os.getpid())
    here = Hosts(jobs=[record(restarter_pid=os.getpid(), restarter_start_ticks=started)])
    here.live()
    here.host.hub.say(*(RankEnd(rank, T0, False) for rank in (0, 1)), status(ended=True))
    snapshot = here.session.tick()
    if is_gone:
        assert snapshot.hub_state is HubState.ENDED
        return
    assert (snapshot.hub_state, snapshot.hub_note) == (HubState.WAITING, RESTARTING)
    here.list(record(hub_pid=9))
    assert here.look().hub_state is HubState.WAITING  # not the end of those before
    assert here.live([3]).hub_state is HubState.LIVE


# Hubs and connections that come and go


@pytest.mark.parametrize(
    ("said", "note"),
    [
        (welcome(protocol=99), "this dashboard is older"),
        (welcome(protocol=0), "the job's agent is older"),
        (welcome("job-9"), "its hub has another job"),
        (TurnedAway("64 dashboards watch this job"), "64 dashboards watch this job"),
    ],
)
def test_hub_that_cannot_be_read_says_why_and_disturbs_no_other(said, note):
    two = Hosts("gpu-a", "gpu-b")
    two.live()
    two.hosts[1].hub.say(said)
    for _ in range(2):
        snapshot = two.session.tick()
        assert (snapshot.job.job, snapshot.ranks[0].last.step) == ("job-1", 0)
        assert snapshot.nodes[1].hub_state is HubState.WAITING
        assert note in snapshot.nodes[1].note


# Commands


def test_burst_is_asked_for_when_the_job_changes_or_one_asks():
    here = Hosts()
    here.live()
    here.session.watch([0], 3)
    assert here.host.hub.bursts == 3
    for number in range(1, 80):
        made = [unmeasured(rank, number, 80 if number < 40 else 120) for rank in (0, 1)]
        here.host.hub.say(*(replace(each, start_ns=T0 + number * 120 * MS) for each in made))
        here.session.tick()
    assert here.host.hub.bursts == 4
    here.session.watch([0], 4)
    assert (here.host.hub.watched, here.host.hub.bursts) == ({0}, 5)


@pytest.mark.parametrize("names", [[""], ["gpu-a", "gpu-b"]])
def test_a_command_goes_to_every_host_once_the_job_is_known(names):
    job = Hosts(*names)
    for _ in range(2):
        assert job.session.send(CHANGE) == NOT_CONNECTED
        job.session.tick()
    job.live()
    assert job.session.send(CHANGE) == ""
    assert all(host.hub.sent == [CHANGE] for host in job.hosts)
    for host in job.hosts:
        host.hub.say(*(report(rank, CHANGE, "changed", 9) for rank in job.ranks(host)))
    (view,) = job.session.tick().commands
    assert (view.state, view.step, len(view.ranks)) == ("changed", 9, 2 * len(names))


# A real hub


@pytest.fixture
def session():
    session = JobSession()
    yield session
    session.close()


def until(session, holds):
    return eventually(lambda: (snapshot := session.tick()) and holds(snapshot) and snapshot)


def test_reading_never_waits_for_a_stopped_hub(hubs, make_rank, session):
    record = hubs.start()
    rank = make_rank().greet()
    rank.send(rank.step(0))
    until(session, lambda s: s.ranks and s.ranks[0].last)
    took_s = []

    def is_stale():
        before_s = time.monotonic()
        state = session.tick().hub_state
        took_s.append(time.monotonic() - before_s)
        return state is HubState.STALE

    os.kill(record.hub_pid, signal.SIGSTOP)
    try:
        eventually(is_stale)
    finally:
        os.kill(record.hub_pid, signal.SIGCONT)
    # A hub that is waited for would be waited for as long as it stands still.
    assert median(took_s) < 0.5
    until(session, lambda s: s.hub_state is HubState.LIVE)
