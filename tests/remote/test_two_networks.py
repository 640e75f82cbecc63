"""A gathered job on two machines, each with a host name and a network of its own."""

import subprocess
from contextlib import ExitStack, closing

import pytest

from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.gather_key import VARIABLE
from tests.processes import eventually
from tests.remote.inside import PROCESS
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching

ADDRESSES = "10.99.0.1", "10.99.0.2"
NOTICED_S = 10.0


class Machine:
    """A host name and a network, which end with it or with the tests."""

    def __init__(self, name):
        first = f"hostname {name} && ip link set lo up && echo up && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", first], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._holder.pid
        self.is_up = self._holder.stdout.readline() == b"up\n"

    def ip(self, *words):
        command = ["nsenter", "-t", str(self.pid), "--net", "ip", *words]
        subprocess.run(command, check=True, timeout=60)

    def close(self):
        self._holder.communicate()


@pytest.fixture
def machines():
    """Two of them, with a cable between."""
    with ExitStack() as stack:
        try:
            made = [stack.enter_context(closing(Machine(f"node-{number}"))) for number in (0, 1)]
        except OSError as error:
            pytest.skip(f"there is no {error.filename}")
        if not all(each.is_up for each in made):
            pytest.skip("no networks can be made here, as by a user other than root")
        made[0].ip("link", "add", "lan", "type", "veth", "peer", "name", "lan", "netns", str(made[1].pid))
        for each, address in zip(made, ADDRESSES, strict=True):
            each.ip("address", "add", f"{address}/24", "dev", "lan")
            each.ip("link", "set", "lan", "up")
        yield made


class NetworkJob(NodeJob):
    """A rank on each machine."""

    module = "tests.remote.inside"

    def __init__(self, warm, folder, machines, nodes):
        self._machines = machines
        variables = {"MASTER_ADDR": ADDRESSES[0], "GLOO_SOCKET_IFNAME": "lan", VARIABLE: "2a" * 32}
        super().__init__(warm, folder, nodes, "--gather", **variables)

    def variables_of(self, rank):
        return super().variables_of(rank) | {PROCESS: str(self._machines[rank].pid)}


def test_a_node_is_seen_over_a_network_lost_with_it_and_back(machines, warm, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("ot")
    nodes = [folder / name for name in ("node-0", "node-1")]
    for node in nodes:
        node.mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(nodes[0]))
    with NetworkJob(warm, folder, machines, nodes) as job:
        eventually(lambda: job.record(0).is_root)
        with Watching("local://").connect() as watching:
            root, node = watching.until_all_step(2).nodes
            assert [root.hub_state, node.hub_state] == [HubState.LIVE] * 2
            assert (root.ranks, node.name, node.ranks) == ((0,), "node-1", (1,))
            rule = "ipproto", "tcp", "dport", str(job.record(0).root_port), "prohibit"
            machines[1].ip("rule", "add", *rule)
            watching.until(lambda snapshot: snapshot.ranks[1].node_lost, NOTICED_S)
            before = len(watching.seen[0])
            watching.until(lambda _: len(watching.seen[0]) > before)  # both step together, the lost one too
            machines[1].ip("rule", "delete", *rule)
            watching.until_all_step(2)
