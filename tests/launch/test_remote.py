"""Workloads on another host: what is ordered, and what is known of it while the line comes and goes."""

from dataclasses import dataclass, field

import pytest

from overlaptop.launch.remote import RemoteLauncher
from overlaptop.launch.request import LaunchPhase, LaunchPlan, LaunchRequest
from overlaptop.wire.codec import encode
from overlaptop.wire.messages import PROTOCOL_VERSION
from overlaptop.wire.relaying import RelayHello, RelayLaunch, RelayLaunchStatus
from tests.fleet.fakes import record


@dataclass
class Host:
    """As RemoteHost, with a relay that says what a test wants."""

    name: str
    gpus: int | None = 0
    readonly: bool = False
    up: bool = True
    note: str = ""
    orders: list = field(default_factory=list)
    order_status: RelayLaunchStatus | None = None
    polls: int = 0

    def __post_init__(self):
        self.hello = RelayHello(PROTOCOL_VERSION, "1", self.name, 1, self.gpus, 1, self.readonly)

    def order(self, words, nproc=None):
        encode(RelayLaunch(len(self.orders) + 1, tuple(words), nproc))
        if not self.up:
            return False
        self.orders.append((tuple(words), nproc))
        self.order_status = None
        return True

    def says(self, phase, *, failed=False, how="", job="", command_line="torchrun ...", output=()):
        self.order_status = RelayLaunchStatus(
            len(self.orders), phase, failed, how, command_line, tuple(output), "", job
        )

    def poll(self):
        self.polls += 1
        if self.orders and not self.orders[-1][0] and self.order_status is None:
            self.says("nothing")


class Session:
    def __init__(self, *hosts):
        self.hosts = hosts

    def pause(self, seconds):
        pass


def stage_of(*hosts):
    return RemoteLauncher(Session(*hosts))


def started(stage, *words, host=""):
    stage.start(stage.plan(LaunchRequest(words[0], tuple(words[1:]), None, host)))
    return stage


@pytest.mark.parametrize(
    ("gpus", "nproc", "options", "place", "count", "device"),
    [
        (8, None, (), "gpu-a: 8 GPUs, NCCL", 8, "cuda"),
        (1, None, (), "gpu-a: 1 GPU, NCCL", 1, "cuda"),
        (8, 2, (), "gpu-a: 2 GPUs, NCCL", 2, "cuda"),
        (2, 4, (), "gpu-a: the CPU, 4 processes, gloo", 4, "cpu"),
        (8, 3, ("--device", "cpu"), "gpu-a: the CPU, 3 processes, gloo", 3, "cpu"),
        (0, None, (), "gpu-a: the CPU, 2 processes, gloo", 2, "cpu"),
        (None, None, (), "gpu-a: its GPUs, else its CPU", 0, "cpu"),
    ],
)
def test_where_it_would_run_follows_from_the_gpus_that_the_host_told_of(
    gpus, nproc, options, place, count, device
):
    plan = stage_of(Host("gpu-a", gpus)).plan(LaunchRequest("ddp", options, nproc))
    assert (plan.fault, plan.place, plan.nproc, plan.device_type) == ("", place, count, device)
    assert plan.request.host == "gpu-a"


@pytest.mark.parametrize(
    ("hosts", "order", "fault"),
    [
        ([Host("gpu-a")], LaunchRequest("nonsense"), "no workload is called 'nonsense'; there are: ddp, "),
        ([Host("gpu-a")], LaunchRequest("ddp", ("--layers", "x")), "--layers"),
        ([Host("gpu-a", 2)], LaunchRequest("ddp", ("--device", "cuda"), 4), "gpu-a has 2 GPUs"),
        ([Host("gpu-a", 0)], LaunchRequest("ddp", ("--device", "cuda")), "gpu-a has no GPUs"),
        ([Host("gpu-a", readonly=True)], LaunchRequest("ddp"), "gpu-a lets this dashboard only look on"),
        (
            [Host("gpu-a", up=False, note="the line broke")],
            LaunchRequest("ddp"),
            "cannot be reached: the line broke",
        ),
        (
            [Host("a", up=False), Host("b", up=False)],
            LaunchRequest("ddp"),
            "no host is there to start it on",
        ),
        ([Host("a"), Host("b", up=False)], LaunchRequest("ddp", host="b"), "b cannot be reached"),
    ],
)
def test_what_would_not_run_is_said_before_it_is_ordered(hosts, order, fault):
    stage = stage_of(*hosts)
    plan = stage.plan(order)
    assert fault in plan.fault
    with pytest.raises(ValueError, match=r".+"):
        stage.start(plan)
    assert not any(host.orders for host in hosts)


def test_the_first_host_that_starts_something_is_taken_by_itself():
    stage = stage_of(Host("a", up=False), Host("b", readonly=True), Host("c"), Host("d"))
    assert stage.hosts == ("c", "d")
    assert stage.plan(LaunchRequest("ddp")).request.host == "c"


def test_an_order_goes_there_and_its_job_is_known_by_its_key():
    host = Host("gpu-a")
    stage = stage_of(host)
    assert stage.status().phase is LaunchPhase.NOTHING
    started(stage, "ddp", "--layers", "2")
    assert host.orders == [(("ddp", "--layers", "2"), None)]
    assert stage.status().phase is LaunchPhase.ENDING
    assert stage.status().label == "ddp --layers 2 on gpu-a"
    assert stage.running == ""
    host.says("running", output=("step 1",))
    status = stage.status()
    assert (status.phase, status.command_line) == (LaunchPhase.RUNNING, "torchrun ...")
    assert stage.running == "ddp --layers 2 on gpu-a"
    assert not stage.owns(record("job-1"))
    host.says("running", job="job-1", output=("step 2",))
    stage.status()
    assert stage.owns(record("job-1"))
    assert not stage.owns(record("job-2"))
    assert stage.output() == ("step 2",)


def test_one_that_fails_says_how_and_what_it_wrote():
    host = Host("gpu-a")
    stage = started(stage_of(host), "ddp")
    host.says("over", failed=True, how="exit status 1", output=("RuntimeError: no",))
    status = stage.status()
    assert (status.phase, status.failed, status.how) == (LaunchPhase.OVER, True, "exit status 1")
    assert stage.output() == ("RuntimeError: no",)
    assert stage.running == ""


def test_each_order_is_another_one_and_the_one_before_says_nothing_of_it():
    host = Host("gpu-a")
    stage = started(stage_of(host), "ddp")
    host.says("running", job="job-1")
    first = stage.status()
    started(stage, "fsdp")
    status = stage.status()
    assert status.number == first.number + 1
    assert (status.phase, status.ending) == (LaunchPhase.ENDING, "ddp on gpu-a")
    assert stage.running == "ddp on gpu-a"
    assert not stage.owns(record("job-1"))


@pytest.mark.parametrize("runs", [True, False])
def test_on_another_host_it_takes_the_place_of_the_one_before(runs):
    a, b = Host("a"), Host("b")
    stage = started(stage_of(a, b), "ddp")
    if runs:
        a.says("running", job="job-1")
        stage.status()
    started(stage, "ddp", host="b")
    assert a.orders == [(("ddp",), None), ((), None)]
    assert b.orders == [(("ddp",), None)]


def test_what_was_started_is_ended_by_a_key():
    host = Host("gpu-a")
    stage = started(stage_of(host), "ddp")
    host.says("running")
    stage.status()
    stage.stop()
    assert host.orders[-1] == ((), None)
    assert (stage.status().phase, stage.status().ending) == (LaunchPhase.ENDING, "ddp on gpu-a")
    host.says("nothing")
    assert stage.status().phase is LaunchPhase.NOTHING
    assert stage.running == ""
    stage.stop()
    assert len(host.orders) == 2


def test_while_the_line_is_lost_nothing_is_claimed_of_it():
    host = Host("gpu-a")
    stage = started(stage_of(host), "ddp")
    host.says("running", job="job-1")
    stage.status()
    host.up = False
    status = stage.status()
    assert status.phase is LaunchPhase.UNKNOWN
    assert "the line to gpu-a is lost" in status.how
    assert stage.running == ""
    assert stage.owns(record("job-1"))


def back(host, stage):
    """The line breaks and comes back; its relay has not answered yet."""
    host.up = False
    stage.status()
    host.up, host.order_status = True, None
    return stage.status()


def test_a_relay_that_comes_after_takes_it_over():
    host = Host("gpu-a")
    stage = started(stage_of(host), "ddp")
    host.says("running", job="job-1")
    stage.status()
    status = back(host, stage)
    assert status.phase is LaunchPhase.UNKNOWN
    assert "is back" in status.how
    host.says("running", job="job-1")
    status = stage.status()
    assert (status.phase, status.label, status.how) == (LaunchPhase.RUNNING, "ddp on gpu-a", "")
    assert stage.running == "ddp on gpu-a"
    stage.close()
    assert host.orders[-1] == ((), None)


def test_what_nobody_keeps_any_more_has_ended():
    host = Host("gpu-a")
    stage = started(stage_of(host), "ddp")
    host.says("running", job="job-1")
    stage.status()
    back(host, stage)
    host.says("over", how="the line was lost")
    status = stage.status()
    assert (status.phase, status.failed, status.how) == (LaunchPhase.OVER, False, "the line was lost")


def test_what_is_asked_for_yet_is_ended_with_the_dashboard():
    host = Host("gpu-a")
    stage = started(stage_of(host), "ddp")
    host.says("running", job="job-1")
    stage.status()
    back(host, stage)
    stage.close()
    assert host.orders[-1] == ((), None)


def test_an_order_that_the_line_does_not_take_any_more_has_failed():
    host = Host("gpu-a")
    stage = stage_of(host)
    plan = stage.plan(LaunchRequest("ddp"))
    host.up = False
    stage.start(plan)
    status = stage.status()
    assert (status.phase, status.failed) == (LaunchPhase.OVER, True)
    assert "gpu-a cannot be reached" in status.how


def test_words_that_cannot_travel_are_no_crash():
    host = Host("gpu-a")
    stage = stage_of(host)
    stage.start(LaunchPlan(LaunchRequest("ddp", ("a\0b",), None, "gpu-a")))
    assert stage.status().failed
    assert host.orders == []


def test_what_runs_is_ended_with_the_dashboard_and_its_host_is_given_time_to_hear_of_it():
    host = Host("gpu-a")
    stage = started(stage_of(host), "ddp")
    host.says("running")
    stage.status()
    stage.close()
    assert host.orders[-1] == ((), None)
    assert host.polls == 1


def test_where_nothing_was_started_nothing_is_ended():
    host = Host("gpu-a")
    stage_of(host).close()
    assert host.orders == []
