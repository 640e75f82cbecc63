"""A JobSession on hosts whose connections tests cut and mend."""

import pytest

from overlaptop.fleet.job_session import SETTLE_S, JobSelector, JobSession
from overlaptop.fleet.snapshot import HubState
from overlaptop.wire import commands
from overlaptop.wire.messages import RankEnd

from .builders import BUCKET_CAP_MB, T0, Clock, S, info, report, status, step, welcome
from .fakes import FakeHost, record


class Cluster:
    """Hosts gpu-a, gpu-b, ..., each with two ranks of job-1, which it tells of once it is joined."""

    def __init__(self, count=2):
        self.clock = Clock()
        self.hosts = [FakeHost(f"gpu-{letter}", self.clock, record()) for letter in "abcd"[:count]]

    def session(self, selector=None, **options):
        return JobSession(
            selector, self.hosts, clock_ns=self.clock, monotonic_s=self.clock.monotonic_s, **options
        )

    def ranks(self, host):
        index = self.hosts.index(host)
        return (2 * index, 2 * index + 1)

    def send_history(self, host, number=0, *, pid=0, job="job-1", again=False):
        """Its hub's history up to this step, then nothing more; ``again``: over a line that is back."""
        world = 2 * len(self.hosts)
        said = [welcome(job, world)]
        for rank in self.ranks(host):
            said.append(info(rank, host=host.name, pid=pid + 1000 + rank, world_size=world, job=job))
            said += [step(rank, each) for each in range(number + 1 if again else 1)]
            said += [step(rank, number)] * (not again)
        host.hub.say(*said, status())

    def live(self, session):
        """Every host is joined and has sent step 0."""
        session.tick()
        for host in self.hosts:
            self.send_history(host)
        return session.tick()

    def go_on(self, number):
        for host in self.hosts:
            if host.ready:
                host.hub.say(*(step(rank, number) for rank in self.ranks(host)))

    def look_again(self, session, after_s=1.0):
        self.clock.pass_s(after_s)
        return session.tick()


@pytest.fixture
def cluster():
    return Cluster()


def states(snapshot):
    return [(node.name, node.hub_state.value, node.note) for node in snapshot.nodes]


# Which job


def test_the_same_key_on_two_hosts_is_one_job_and_the_only_one(cluster):
    session = cluster.session()
    session.watch([1, 3])
    snapshot = cluster.live(session)
    assert session.job_key == "job-1"
    assert (snapshot.hub_state, len(snapshot.ranks)) == (HubState.LIVE, 4)
    assert [view.node for view in snapshot.ranks] == ["gpu-a", "gpu-a", "gpu-b", "gpu-b"]
    assert states(snapshot) == [("gpu-a", "live", ""), ("gpu-b", "live", "")]
    assert (snapshot.nodes[0].offset_ns, snapshot.nodes[0].residual_ns) == (5_000_000, 100_000)
    assert [(job.job, job.host) for job in session.jobs] == [("job-1", "gpu-a, gpu-b")]
    assert [host.hub.watched for host in cluster.hosts] == [{1}, {3}]
    session.watch([2])
    assert [host.hub.watched for host in cluster.hosts] == [set(), {2}]
    assert [host.polls for host in cluster.hosts] == [2, 2]
    session.close()
    assert all(host.closed and host.hub.closed for host in cluster.hosts)
    assert len(cluster.look_again(session).ranks) == 4


def test_hosts_with_a_job_each_are_several_jobs_to_choose_from(cluster):
    cluster.hosts[1].jobs = [record("job-2", started_ns=T0 + S)]
    session = cluster.session()
    snapshot = session.tick()
    assert (snapshot.hub_state, snapshot.hub_note) == (HubState.WAITING, "2 jobs run there: choose one")
    assert [(job.job, job.host) for job in session.jobs] == [("job-2", "gpu-b"), ("job-1", "gpu-a")]
    assert states(snapshot) == [("gpu-a", "waiting", "1 job there"), ("gpu-b", "waiting", "1 job there")]
    session.select("job-2")
    session.tick()
    cluster.send_history(cluster.hosts[1], job="job-2")
    snapshot = session.tick()
    assert snapshot.hub_state is HubState.LIVE
    assert states(snapshot)[0] == ("gpu-a", "waiting", "the job is not there")
    assert not snapshot.nodes[0].lost
    cluster.hosts[1].cut()
    snapshot = cluster.look_again(session)  # the same script runs on gpu-a
    assert (session.job_key, snapshot.hub_state) == ("job-2", HubState.LOST)
    assert snapshot.hub_note == "gpu-b: the line broke"


@pytest.mark.parametrize("end", ["connects", "fails", "takes long"])
def test_host_that_connects_is_waited_for_before_a_job_is_taken(end):
    cluster = Cluster()
    cluster.hosts[1] = FakeHost("gpu-b", cluster.clock, up=False)
    session = cluster.session()
    session.tick()
    assert session.job_key is None
    if end == "connects":
        cluster.hosts[1].jobs = [record("job-2")]
        cluster.hosts[1].connect()
    elif end == "fails":
        cluster.hosts[1].cut("gpu-b: permission denied")
    cluster.look_again(session, SETTLE_S if end == "takes long" else 0.6)
    assert (session.job_key, len(session.jobs)) == ((None, 2) if end == "connects" else ("job-1", 1))


def test_note_names_hosts_that_connect_or_why_they_do_not():
    cluster = Cluster()
    cluster.hosts = hosts = [FakeHost(f"gpu-{letter}", cluster.clock, up=False) for letter in "abcd"]
    assert cluster.session().tick().hub_note == "connecting to gpu-a, gpu-b and 2 more"
    del hosts[2:]
    session = cluster.session()
    hosts[0].connect()
    hosts[1].cut("permission denied")
    snapshot = session.tick()
    assert snapshot.hub_note == "waiting for a job on gpu-a, gpu-b"
    assert states(snapshot) == [
        ("gpu-a", "waiting", "no jobs there"),
        ("gpu-b", "lost", "permission denied"),
    ]
    del hosts[0]
    assert cluster.session().tick().hub_note == "permission denied"


def test_hub_of_another_job_does_not_disturb_the_others(cluster):
    session = cluster.session()
    cluster.live(session)
    cluster.send_history(cluster.hosts[1], job="job-9")
    snapshot = session.tick()
    assert (snapshot.job.job, snapshot.ranks[0].last.step) == ("job-1", 0)
    assert states(snapshot)[1] == ("gpu-b", "waiting", "its hub has another job")


# Nodes that come and go


def test_connection_that_is_back_brings_what_was_missed(cluster):
    session = cluster.session()
    cluster.live(session)
    cluster.clock.pass_s(10)
    cluster.hosts[1].cut("the line broke")
    cluster.go_on(1)
    snapshot = session.tick()
    assert states(snapshot) == [("gpu-a", "live", ""), ("gpu-b", "lost", "the line broke")]
    assert snapshot.nodes[1].since_ns == T0 + 10 * S
    assert [(view.last.step, view.node_lost) for view in snapshot.ranks] == [
        (1, False), (1, False), (0, True), (0, True),
    ]  # fmt: skip
    assert (snapshot.hub_state, snapshot.totals.step) == (HubState.LIVE, 1)
    assert not cluster.hosts[0].hub.closed
    for number in range(2, 6):
        cluster.go_on(number)
        cluster.look_again(session)
    cluster.hosts[1].connect()
    cluster.send_history(cluster.hosts[1], 7, again=True)
    cluster.go_on(6)
    snapshot = session.tick()
    assert [len(host.hubs) for host in cluster.hosts] == [1, 1]
    assert [fresh.step for fresh in snapshot.fresh if fresh.rank == 2] == list(range(1, 8))
    assert [known.step for known in snapshot.ranks[2].history] == list(range(8))
    assert not any(view.node_lost for view in snapshot.ranks)


def test_job_that_starts_again_under_another_key_is_followed(cluster):
    for host in cluster.hosts:
        host.jobs.append(record("job-2"))  # the same script beside it is no restart
    session = cluster.session(JobSelector(key="job-1"))
    cluster.live(session)
    cluster.look_again(session)
    for host in cluster.hosts:
        host.hub.say(*(RankEnd(rank, T0, True) for rank in cluster.ranks(host)), status(ended=True))
        host.hub.alive = False
        host.jobs = [record("job-2")]
    cluster.look_again(session)
    snapshot = cluster.look_again(session)
    assert snapshot.hub_state is HubState.ENDED
    assert states(snapshot)[0] == ("gpu-a", "ended", "if train.py is started again, it is shown here")
    for host in cluster.hosts:
        host.jobs = [record("job-2"), record("job-7", hub_pid=9), record("job-8", script="other.py")]
    snapshot = cluster.look_again(session)
    assert (session.job_key, snapshot.job.job, snapshot.hub_state) == ("job-7", "job-1", HubState.ENDED)
    assert (snapshot.fresh, len(snapshot.ranks)) == ((), 4)
    session.tick()
    cluster.send_history(cluster.hosts[0], 3, job="job-7")
    snapshot = session.tick()
    assert (snapshot.job.job, snapshot.hub_state) == ("job-7", HubState.LIVE)
    assert [known.step for known in snapshot.ranks[0].history] == [0, 3]


def test_restarted_job_is_followed_although_a_node_is_lost(cluster):
    session = cluster.session()
    cluster.live(session)
    cluster.hosts[1].cut()
    first = cluster.hosts[0]
    first.hub.say(*(RankEnd(rank, T0, True) for rank in cluster.ranks(first)), status(ended=True))
    first.hub.alive = False
    first.jobs = [record("job-7", hub_pid=9)]
    session.tick()
    cluster.look_again(session)
    assert session.job_key == "job-7"
    cluster.hosts[1].jobs = [record("job-7", hub_pid=9)]
    cluster.hosts[1].connect()
    cluster.look_again(session)
    for host in cluster.hosts:
        cluster.send_history(host, job="job-7")
    assert session.tick().nodes[1].ranks == (2, 3)


# Commands


CHANGE = commands.make_setting(BUCKET_CAP_MB, 50)


def test_a_command_goes_to_every_node_as_the_same_one(cluster):
    session = cluster.session()
    cluster.live(session)
    assert session.send(CHANGE) == ""
    assert [host.hub.sent for host in cluster.hosts] == [[CHANGE], [CHANGE]]
    for host in cluster.hosts:
        host.hub.say(*(report(rank, CHANGE, "changed", 9) for rank in cluster.ranks(host)))
    (view,) = session.tick().commands
    assert (view.state, view.step, [each.rank for each in view.ranks]) == ("changed", 9, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda host: host.cut(), "gpu-b cannot be reached"),
        (lambda host: setattr(host, "readonly", True), "gpu-b is read-only"),
    ],
    ids=["lost", "read-only"],
)
def test_nothing_is_sent_while_a_node_cannot_be_changed(cluster, harm, why):
    session = cluster.session()
    cluster.live(session)
    harm(cluster.hosts[1])
    session.tick()
    trial = commands.make_trial(BUCKET_CAP_MB, 50, 20)
    for command, what in ((CHANGE, "change"), (trial, "trial")):
        assert session.send(command) == f"{why}: a {what} needs all ranks"
    assert [host.hub.sent for host in cluster.hosts] == [[], []]
