"""A gathered job on four nodes, each with a network of its own: all of it is seen through the first one."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack

import pytest

from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.gather_key import VARIABLE
from tests.processes import eventually
from tests.remote.inside import PROCESS
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching

NODES = 4
NETWORK = "10.99.0"
NOTICED_S = 10.0
NOBODY = 65534
STRANGER = f"""
import os, sys, zmq
from zmq.utils import z85

os.setgid({NOBODY})
os.setuid({NOBODY})
try:
    print(os.listdir(sys.argv[3]))
except PermissionError:
    print("no sockets")
context = zmq.Context()
dealers = []
for secret in (None, "71" * 32):
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    if secret:
        secret = z85.encode(bytes.fromhex(secret))
        dealer.setsockopt(zmq.CURVE_SERVERKEY, zmq.curve_public(z85.encode(bytes.fromhex("2a" * 32))))
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(secret))
        dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
    dealer.connect(f"tcp://{{sys.argv[1]}}:{{sys.argv[2]}}")
    dealer.send(b"\\x01")
    dealers.append(dealer)
print(sum(dealer.poll(1500) for dealer in dealers), "answers")
"""
"""Of another user, without a key and with an old one."""
CHECK = """
from overlaptop.doctor import Machine, check_gather

print(*(f"{each.status}: {each.finding}" for each in check_gather(Machine()) if each.check == "gather"))
"""


class Machine:
    """A host name and a network, which end with it or with the tests."""

    def __init__(self, name):
        first = f"hostname {name} && ip link set lo up && echo up && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", first], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._holder.pid
        self.is_up = self._holder.stdout.readline() == b"up\n"

    def run(self, *words, **variables):
        """What a command there writes."""
        command = ["nsenter", "-t", str(self.pid), "--net", "--uts", *words]
        environment = {**os.environ, **variables}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def close(self):
        self._holder.communicate()


class Cluster:
    """Machines on one switch, and the folder of each for its jobs' sockets."""

    def __init__(self, folder, stack):
        def machine(name):
            made = Machine(name)
            stack.callback(made.close)
            assert made.is_up
            return made

        switch = machine("switch")
        switch.run("sh", "-c", "ip link add bridge0 type bridge && ip link set bridge0 up")
        self.machines = [machine(f"node-{number}") for number in range(NODES)]
        self.folders = [folder / f"node-{number}" for number in range(NODES)]
        for number, each in enumerate(self.machines):
            self.folders[number].mkdir(mode=0o700)
            end = f"port{number}"
            switch.run(
                "ip", "link", "add", end, "type", "veth", "peer", "name", "lan", "netns", str(each.pid)
            )
            switch.run("ip", "link", "set", end, "master", "bridge0", "up")
            each.run("ip", "address", "add", f"{NETWORK}.{number + 1}/24", "dev", "lan")
            each.run("ip", "link", "set", "lan", "up")


class ClusterJob(NodeJob):
    """A rank on each machine."""

    module = "tests.remote.inside"

    def __init__(self, warm, folder, cluster):
        self._cluster = cluster
        variables = {"MASTER_ADDR": f"{NETWORK}.1", "GLOO_SOCKET_IFNAME": "lan", VARIABLE: "2a" * 32}
        super().__init__(warm, folder, cluster.folders, "--gather", **variables)

    def _place(self, rank, port):
        return super()._place(rank, port) | {PROCESS: str(self._cluster.machines[rank].pid)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ExitStack() as stack:
        try:
            made = Cluster(tmp_path_factory.mktemp("ot"), stack)
        except (OSError, AssertionError) as error:
            pytest.skip(f"no networks can be made here, as by a user other than root: {error}")
        yield made


@pytest.fixture(scope="module")
def job(cluster, warm, tmp_path_factory):
    with ClusterJob(warm, tmp_path_factory.mktemp("job"), cluster) as started:
        yield started


@pytest.fixture(scope="module")
def watching(cluster, job):
    """Who reaches the first node only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPTOP_DIR", str(cluster.folders[0]))
        eventually(lambda: job.record(0).is_root)
        with Watching("local://").connect() as made:
            made.until_all_step(NODES)
            yield made


def check_gather(cluster):
    """What `overlaptop doctor` says on the last node of the way to the root."""
    return cluster.machines[-1].run(sys.executable, "-c", CHECK, OVERLAPTOP_DIR=str(cluster.folders[-1]))


def test_all_nodes_are_seen_through_the_first(watching):
    nodes = watching.snapshot.nodes
    assert [node.hub_state for node in nodes] == [HubState.LIVE] * NODES
    assert sorted(node.ranks for node in nodes) == [(rank,) for rank in range(NODES)]
    assert sorted(node.name for node in nodes[1:]) == [f"node-{number}" for number in range(1, NODES)]


def test_doctor_says_that_the_port_is_closed_and_the_job_goes_on(cluster, job, watching):
    last, place = cluster.machines[-1], f"{NETWORK}.1 port {job.record(0).root_port}"
    assert re.fullmatch(f"ok: .* {place} can be reached\n", check_gather(cluster))
    rule = "ipproto", "tcp", "dport", str(job.record(0).root_port), "prohibit"
    last.run("ip", "rule", "add", *rule)
    try:
        watching.until(lambda snapshot: snapshot.ranks[-1].node_lost, NOTICED_S)
        assert re.fullmatch(f"warning: .* {place} cannot be reached .*\n", check_gather(cluster))
        before = [len(watching.seen[rank]) for rank in range(NODES - 1)]
        watching.until(  # all step together, the lost one too
            lambda _: all(len(watching.seen[rank]) > steps for rank, steps in enumerate(before))
        )
    finally:
        last.run("ip", "rule", "delete", *rule)
    watching.until_all_step(NODES)


def test_another_user_gets_nothing(cluster, job, watching):
    words = f"{NETWORK}.1", str(job.record(0).root_port), str(cluster.folders[0])
    assert cluster.machines[0].run(sys.executable, "-c", STRANGER, *words) == "no sockets\n0 answers\n"
    watching.until_all_step(NODES)
    assert len(watching.snapshot.nodes) == NODES
