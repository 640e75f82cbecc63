"""Two hubs of one job, each in a socket directory of its own, and who else comes to the root's port."""

import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.gather_key import VARIABLE
from overlaptop.jobs.hub_reader import HubReader
from overlaptop.jobs.hub_socket import HubSocket
from overlaptop.wire import commands
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import CAPTURE, Command
from overlaptop.wire.joining import Gather, Gathered, HubClock, HubHello, Join, Watch
from overlaptop.wire.messages import HubStatus, RankEnd, StepTotals, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION, READER_TIMEOUT_S
from tests.hubs import KEY, Hubs, Rank, Receiver
from tests.processes import eventually, runs
from tests.recording.played import whole

KEY_HEX = "17" * 32
OTHER_HEX = "71" * 32
HERE = "127.0.0.1"


def capture():
    return commands.make(CAPTURE, {"steps": 5})


class Node:
    """A socket directory with a hub and one rank of the job."""

    def __init__(self, rank, folder, monkeypatch, *options):
        folder.chmod(0o700)
        self.folder, self._monkeypatch, self._number = folder, monkeypatch, rank
        self._options = options or ("--linger-s=0.1",)
        self.hubs = Hubs()
        self.start()

    def start(self):
        self._monkeypatch.setenv("OVERLAPTOP_DIR", str(self.folder))
        self.record = self.hubs.start(*self._options)
        self.rank = Rank(self._number).greet()
        self.rank.send(self.rank.step(1))

    def socket(self, kind="dash"):
        return self.folder / KEY / f"{kind}-{self.record.hub_pid}.sock"

    def gather(self, address=(HERE, 0)):
        self.rank.send(Gather(self._number, self._number == 0, *address))
        return self.rank.receive(Gathered)

    def die(self):
        os.kill(self.record.hub_pid, signal.SIGKILL)
        self.rank.close()

    def end(self):
        self._monkeypatch.setenv("OVERLAPTOP_DIR", str(self.folder))
        self.rank.close()
        self.hubs.end_all()


class Reader(Receiver):
    """A reader of the hub at this path."""

    def __init__(self, path):
        super().__init__()
        self.socket, self.hub = HubSocket(path), HubReader()
        self.hub.connect(self.socket)

    def poll(self):
        self.socket.receive()
        self.messages += self.hub.poll()

    @property
    def nodes(self):
        return list(self.socket.hubs)

    def node(self):
        """A reader of the only other node, over this one's connection."""
        self.until(lambda: self.nodes)
        reader = Receiver()
        reader.hub = HubReader()
        reader.hub.connect(self.socket, self.nodes[0])
        reader.poll = lambda: self.poll() or reader.messages.extend(reader.hub.poll())
        reader.receive(Welcome)
        return reader


def is_second(step):
    return step.step == 2


@pytest.fixture
def nodes(monkeypatch, tmp_path_factory):
    monkeypatch.setenv(VARIABLE, KEY_HEX)
    made = [Node(rank, tmp_path_factory.mktemp("ot"), monkeypatch) for rank in range(2)]
    yield made
    for node in made:
        node.end()


@pytest.fixture
def gathered(nodes):
    """Both nodes, and the root's address."""
    answer = nodes[0].gather()
    assert answer.port, answer.refusal
    address = answer.host, answer.port
    assert nodes[1].gather(address) == Gathered(*address)
    return *nodes, address


@pytest.fixture
def read():
    with ExitStack() as sockets:

        def make(path):
            reader = Reader(path)
            sockets.callback(reader.socket.close)
            return reader

        yield make


def test_commands_over_the_read_only_socket_are_refused(gathered, read):
    root, node, _ = gathered
    there = read(root.socket("view")).node()
    assert there.hub.send(capture())
    seconds = len(there.of(HubStatus)) + 2
    there.until(lambda: len(there.of(HubStatus)) >= seconds)  # by then it has arrived
    allowed = capture()
    assert read(root.socket()).node().hub.send(allowed)
    assert node.rank.next_command().id == allowed.id
    there.receive(Command, lambda sent: sent.id == allowed.id)
    assert len(there.of(Command)) == 1


def test_no_tcp_port_is_open_without_gather(nodes):
    open_sockets = {
        os.readlink(path)  # noqa: PTH115 - Path.readlink would take socket:[1] for a path
        for node in nodes
        for path in Path(f"/proc/{node.record.hub_pid}/fd").iterdir()
    }
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).open()]  # noqa: SIM115
    assert not open_sockets & {f"socket:[{row[9]}]" for row in rows}


def stranger(context, address, secret_hex=None, server_hex=KEY_HEX):
    """The socket of a client that says what a hub and what a dashboard would say."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    if secret_hex is not None:
        secret = z85.encode(bytes.fromhex(secret_hex))
        dealer.curve_serverkey = zmq.curve_public(z85.encode(bytes.fromhex(server_hex)))
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_public(secret), secret
    dealer.connect("tcp://{}:{}".format(*address))
    dealer.send_multipart([b"", encode(HubHello("stranger", 1, HubClock(0, 0)))])
    dealer.send(encode(Join(PROTOCOL_VERSION, ())))
    return dealer


def test_strangers_get_nothing_and_the_job_goes_on(gathered, read):
    root, _, address = gathered
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        for number in range(20):
            noise = stack.enter_context(socket.create_connection(address))
            noise.sendall(os.urandom(1 + 500 * number))
        # The last one has the right key: the others had the time, too.
        keys = (), (OTHER_HEX,), (OTHER_HEX, OTHER_HEX), (KEY_HEX,)
        *strangers, _ = [stack.enter_context(stranger(context, address, *each)) for each in keys]
        here = read(root.socket())
        here.until(lambda: len(here.nodes) == 2)
        root.rank.send(root.rank.step(2))
        here.receive(StepTotals, is_second)
        assert {hub.host for hub in here.socket.hubs.values()} == {socket.gethostname(), "stranger"}
        assert not any(each.poll(0) for each in strangers)


def test_replaced_root_binds_its_port_again_and_the_node_returns(gathered, read):
    root, node, address = gathered
    local = read(node.socket())
    root.die()
    node.rank.send(node.rank.step(2))
    local.receive(StepTotals, is_second)
    root.start()
    assert root.gather(address) == Gathered(*address)
    read(root.socket()).node().receive(StepTotals, is_second)


def test_a_replaced_hub_of_a_node_is_the_same_node(gathered, read):
    root, node, address = gathered
    here = read(root.socket())
    there = here.node()
    before = here.nodes
    node.die()
    here.until(lambda: not here.nodes)
    node.start()
    node.gather(address)
    here.until(lambda: here.nodes)
    assert here.nodes == before
    there.until(lambda: len(there.of(Welcome)) == 2)


def test_without_an_own_address_or_a_key_the_hub_refuses(monkeypatch, nodes, tmp_path):
    answer = nodes[0].gather(("192.0.2.77", 0))
    assert (answer.port, answer.refusal.partition(": ")[0]) == (0, "cannot bind 192.0.2.77 port 0")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    nodes[0].die()
    nodes[0].start()  # a hub takes its environment from the rank that starts it
    answer = nodes[0].gather()
    assert (answer.port, answer.refusal.partition(", which")[0]) == (0, "no key: run `overlaptop key`")


def test_a_hub_that_ends_says_goodbye(gathered, read):
    root, node, _ = gathered
    here = read(root.socket())
    here.until(lambda: here.nodes)
    node.rank.send(RankEnd(1, time.time_ns(), clean=True))
    eventually(lambda: not runs(node.record.hub_pid))
    here.poll()
    seconds = len(here.of(HubStatus))
    here.until(lambda: not here.nodes)
    assert len(here.of(HubStatus)) - seconds < READER_TIMEOUT_S - 1


def test_the_recording_of_a_gathered_job_has_all_nodes(monkeypatch, tmp_path_factory):
    monkeypatch.setenv(VARIABLE, KEY_HEX)
    folders = [tmp_path_factory.mktemp("ot") for _ in range(2)]
    recordings = tmp_path_factory.mktemp("ot") / "new"
    options = (f"--record={recordings}", "--linger-s=60"), ("--linger-s=60",)
    nodes = [Node(rank, folders[rank], monkeypatch, *options[rank]) for rank in range(2)]
    try:
        (alone,) = eventually(lambda: [*recordings.glob("*.mcap")])
        answer = nodes[0].gather()
        nodes[1].gather((answer.host, answer.port))
        (path,) = eventually(lambda: [each for each in recordings.glob("*.mcap") if each != alone])
        eventually(lambda: nodes[1].rank.receive(Watch).detail)
        for number, node in enumerate(nodes):
            node.rank.send(RankEnd(number, 1, clean=True, exit_code=0))
        recording = eventually(lambda: whole(path))
        snapshot = ReplaySession(recording).seek(recording.last_ns)
        assert [[each.step for each in view.history] for view in snapshot.ranks] == [[1], [1]]
        assert {node.hub_state for node in snapshot.nodes} == {HubState.ENDED}
    finally:
        for node in nodes:
            node.end()
