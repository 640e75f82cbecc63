"""Workloads on another host: what is requested, and what is known of it while connections come and go."""

from types import SimpleNamespace

import pytest

from overlaptop.launch.on_other_host import RemoteLauncher
from overlaptop.launch.request import LaunchPhase, LaunchPlan, LaunchRequest
from overlaptop.wire.codec import encode
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.relaying import RelayHello, RelayLaunch, RelayLaunchStatus
from tests.fleet.fakes import record


class Host:
    """As RemoteHost, with a relay that says what a test wants."""

    def __init__(self, name, gpus=0, *, readonly=False, up=True, note=""):
        self.name, self.up, self.note, self.readonly = name, up, note, readonly
        self.hello = RelayHello(PROTOCOL_VERSION, "1", name, 1, gpus, 1, readonly)
        self.launches, self.launch_status, self.polls = [], None, 0

    def launch(self, words, nproc=None):
        encode(RelayLaunch(len(self.launches) + 1, tuple(words), nproc))
        if not self.up:
            return False
        self.launches.append((tuple(words), nproc))
        self.launch_status = None
        return True

    def says(self, phase, *, failed=False, how="", job="", command_line="torchrun ...", output=()):
        self.launch_status = RelayLaunchStatus(
            len(self.launches), phase, failed, how, command_line, tuple(output), "", job
        )

    def poll(self):
        self.polls += 1
        if self.launches and not self.launches[-1][0] and self.launch_status is None:
            self.says("nothing")


def launcher_of(*hosts):
    return RemoteLauncher(SimpleNamespace(hosts=hosts, pause=lambda seconds: None))


def started(launcher, *words, host=""):
    launcher.start(launcher.plan(LaunchRequest(words[0], tuple(words[1:]), None, host)))
    return launcher


@pytest.mark.parametrize(
    ("gpus", "nproc", "options", "place", "count", "defaults"),
    [
        (8, None, (), "gpu-a: 8 GPUs, NCCL", 8, "cuda"),
        (1, None, (), "gpu-a: 1 GPU shared by 2 processes, NCCL", 2, "shared"),
        (1, 1, (), "gpu-a: 1 GPU, NCCL", 1, "cuda"),
        (8, 2, (), "gpu-a: 2 GPUs, NCCL", 2, "cuda"),
        (2, 4, (), "gpu-a: 2 GPUs shared by 4 processes, NCCL", 4, "shared"),
        (8, 3, ("--device", "cpu"), "gpu-a: the CPU, 3 processes, gloo", 3, "cpu"),
        (None, None, (), "gpu-a: its GPUs, else its CPU", 0, "cpu"),
    ],
)
def test_where_it_would_run_follows_from_the_gpus_that_the_host_told_of(
    gpus, nproc, options, place, count, defaults
):
    plan = launcher_of(Host("gpu-a", gpus)).plan(LaunchRequest("ddp", options, nproc))
    assert (plan.fault, plan.place, plan.nproc, plan.defaults) == ("", place, count, defaults)
    assert plan.request.host == "gpu-a"


@pytest.mark.parametrize(
    ("hosts", "wanted", "fault"),
    [
        ([Host("gpu-a")], LaunchRequest("nonsense"), "no workload is called 'nonsense'; there are: ddp, "),
        ([Host("gpu-a")], LaunchRequest("ddp", ("--layers", "x")), "--layers"),
        (
            [Host("gpu-a", 0)],
            LaunchRequest("ddp", ("--device", "cuda")),
            "gpu-a: --device cuda: there is no GPU",
        ),
        ([Host("gpu-a", readonly=True)], LaunchRequest("ddp"), "gpu-a is read-only"),
        ([Host("gpu-a", up=False, note="it broke")], LaunchRequest("ddp"), "cannot be reached: it broke"),
        ([Host("a", up=False), Host("b", up=False)], LaunchRequest("ddp"), "no host is there to start it"),
        ([Host("a"), Host("b", up=False)], LaunchRequest("ddp", host="b"), "b cannot be reached"),
    ],
)
def test_what_would_not_run_is_said_before_it_is_sent(hosts, wanted, fault):
    launcher = launcher_of(*hosts)
    plan = launcher.plan(wanted)
    assert fault in plan.fault
    with pytest.raises(ValueError, match=r".+"):
        launcher.start(plan)
    assert not any(host.launches for host in hosts)


@pytest.fixture
def host():
    return Host("gpu-a")


@pytest.fixture
def running(host):
    """The launcher of a job that runs there."""
    launcher = started(launcher_of(host), "ddp")
    host.says("running", job="job-1")
    launcher.status()
    return launcher


def test_a_request_is_sent_there_and_its_job_is_known_by_its_key(host):
    launcher = launcher_of(host)
    assert launcher.status().phase is LaunchPhase.NOTHING
    launcher.close()
    assert host.launches == []
    started(launcher, "ddp", "--layers", "2")
    assert host.launches == [(("ddp", "--layers", "2"), None)]
    assert launcher.status().phase is LaunchPhase.ENDING
    assert launcher.status().label == "ddp --layers 2 on gpu-a"
    assert launcher.running == ""
    host.says("running", output=("step 1",))
    status = launcher.status()
    assert (status.phase, status.command_line) == (LaunchPhase.RUNNING, "torchrun ...")
    assert launcher.running == "ddp --layers 2 on gpu-a"
    assert not launcher.owns(record("job-1"))
    host.says("running", job="job-1", output=("step 2",))
    launcher.status()
    assert launcher.owns(record("job-1"))
    assert not launcher.owns(record("job-2"))
    assert launcher.output() == ("step 2",)


def test_one_that_fails_says_how_and_what_it_wrote(host, running):
    host.says("over", failed=True, how="exit status 1", output=("RuntimeError: no",))
    status = running.status()
    assert (status.phase, status.failed, status.how) == (LaunchPhase.OVER, True, "exit status 1")
    assert running.output() == ("RuntimeError: no",)
    assert running.running == ""


def test_the_status_of_one_request_says_nothing_of_the_next(running):
    first = running.status()
    started(running, "fsdp")
    status = running.status()
    assert status.number == first.number + 1
    assert (status.phase, status.ending) == (LaunchPhase.ENDING, "ddp on gpu-a")
    assert running.running == "ddp on gpu-a"
    assert not running.owns(record("job-1"))


@pytest.mark.parametrize("runs", [True, False])
def test_the_first_host_that_starts_something_is_taken_by_itself_and_another_in_its_place(runs):
    c, d = Host("c"), Host("d")
    launcher = launcher_of(Host("a", up=False), Host("b", readonly=True), c, d)
    assert launcher.hosts == ("c", "d")
    started(launcher, "ddp")
    if runs:
        c.says("running", job="job-1")
        launcher.status()
    started(launcher, "ddp", host="d")
    assert c.launches == [(("ddp",), None), ((), None)]
    assert d.launches == [(("ddp",), None)]


def test_what_was_started_is_ended_by_a_key(host, running):
    running.stop()
    assert host.launches[-1] == ((), None)
    assert (running.status().phase, running.status().ending) == (LaunchPhase.ENDING, "ddp on gpu-a")
    host.says("nothing")
    assert running.status().phase is LaunchPhase.NOTHING
    assert running.running == ""
    running.stop()
    assert len(host.launches) == 2


def test_while_the_connection_is_lost_nothing_is_claimed_and_a_relay_that_comes_after_takes_it_over(
    host, running
):
    host.up = False
    status = running.status()
    assert status.phase is LaunchPhase.UNKNOWN
    assert "the connection to gpu-a is lost" in status.how
    assert running.running == ""
    assert running.owns(record("job-1"))
    host.up, host.launch_status = True, None
    status = running.status()
    assert status.phase is LaunchPhase.UNKNOWN
    assert "is back" in status.how
    host.says("running", job="job-1")
    status = running.status()
    assert (status.phase, status.label, status.how) == (LaunchPhase.RUNNING, "ddp on gpu-a", "")
    assert running.running == "ddp on gpu-a"


def test_what_no_supervisor_keeps_any_more_has_ended(host, running):
    host.up = False
    running.status()
    host.up = True
    host.says("over", how="the connection was lost")
    status = running.status()
    assert (status.phase, status.failed, status.how) == (LaunchPhase.OVER, False, "the connection was lost")


def test_a_request_that_cannot_be_sent_any_more_has_failed(host):
    launcher = launcher_of(host)
    launcher.start(LaunchPlan(LaunchRequest("ddp", ("a\0b",), None, "gpu-a")))
    assert launcher.status().failed
    plan = launcher.plan(LaunchRequest("ddp"))
    host.up = False
    launcher.start(plan)
    status = launcher.status()
    assert (status.phase, status.failed) == (LaunchPhase.OVER, True)
    assert "gpu-a cannot be reached" in status.how
    assert host.launches == []


@pytest.mark.parametrize("lost", [False, True])
def test_what_runs_is_ended_with_the_dashboard_and_its_host_is_given_time_to_receive_that(
    host, running, lost
):
    if lost:  # and had again: its relay has not answered yet
        host.up = False
        running.status()
        host.up, host.launch_status = True, None
        running.status()
    running.close()
    assert host.launches[-1] == ((), None)
    assert host.polls == 1
