"""A gathered job on four nodes, each in namespaces of its own: all of it is seen through the first one."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.gather_key import VARIABLE
from tests.remote.hosts import Cluster, Node, RemoteJob, why_not
from tests.remote.watching import Watching
from tests.warm import Warm

pytestmark = pytest.mark.skipif(bool(why_not("ip")), reason=why_not("ip") or "it can be")

NODES = 4
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(NODES, tmp_path_factory.mktemp("ot")) as made:
        yield made


@pytest.fixture(scope="module")
def watching(cluster: Cluster, warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watching]:
    """Who reaches the first node only."""
    first, folder = cluster.nodes[0], tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "2a" * 32)
        with RemoteJob(cluster.nodes, folder, warm, "--gather") as job:
            with Watching(via=[shlex.join(command_on(first))]).connect() as made:
                made.until_all_step(NODES)
                yield made
            assert job.runs, job.log.read_text()


def command_on(node: Node, *words: str) -> list[str]:
    return ["env", f"OVERLAPTOP_DIR={node.jobs_dir}", *node.host.argv(*words)]


def check_gather(node: Node) -> str:
    """What `overlaptop doctor` says there of the way to the root."""
    command = command_on(node, sys.executable, "-c", CHECK)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def root_port(node: Node) -> str:
    (record,) = node.jobs_dir.glob("*/job.json")
    return str(json.loads(record.read_text())["root_port"])


def test_all_nodes_are_seen_through_the_first(watching: Watching) -> None:
    nodes = watching.snapshot.nodes
    assert [node.hub_state for node in nodes] == [HubState.LIVE] * NODES
    assert sorted(node.ranks for node in nodes) == [(rank,) for rank in range(NODES)]
    assert sorted(node.name for node in nodes[1:]) == [f"node-{number}" for number in range(1, NODES)]


def test_doctor_says_that_the_port_is_closed_and_the_job_goes_on(
    cluster: Cluster, watching: Watching
) -> None:
    last, port = cluster.nodes[-1], root_port(cluster.nodes[0])
    assert re.fullmatch(f"ok: .* 10.99.0.1 port {port} can be reached\n", check_gather(last))
    rule = "ipproto", "tcp", "dport", port, "prohibit"
    last.host.do("ip", "rule", "add", *rule)
    try:
        watching.until(lambda snapshot: snapshot.ranks[-1].node_lost, NOTICED_S)
        assert re.fullmatch(f"warning: .* 10.99.0.1 port {port} cannot be reached .*\n", check_gather(last))
        others = [len(watching.seen[rank]) for rank in range(NODES - 1)]
        watching.until(  # all step together, the lost one too
            lambda _: all(len(watching.seen[rank]) > steps for rank, steps in enumerate(others))
        )
    finally:
        last.host.do("ip", "rule", "delete", *rule)
    watching.until_all_step(NODES)


def test_another_user_gets_nothing(cluster: Cluster, watching: Watching) -> None:
    first, words = cluster.nodes[0], ("10.99.0.1", root_port(cluster.nodes[0]))
    command = first.host.argv(sys.executable, "-c", STRANGER, *words, str(first.jobs_dir))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "no sockets\n0 answers\n", done.stderr
    watching.until_all_step(NODES)
    assert len(watching.snapshot.nodes) == NODES
