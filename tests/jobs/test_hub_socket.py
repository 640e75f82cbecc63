"""A reader of a hub that does not read, and a reader that does not."""

from contextlib import closing

import zmq

from overlaptop.jobs.hub_reader import HubReader
from overlaptop.jobs.hub_socket import HubSocket
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.joining import Join
from overlaptop.wire.messages import Found
from tests.fleet.builders import status
from tests.processes import eventually


class SlowCarrier:
    """The connection to a hub that takes only messages of some types."""

    def __init__(self, accepted):
        self.accepted, self.sent = accepted, []
        self.readers = {}

    def is_trusted(self):
        return True

    def put(self, _node, payload):
        message = decode(payload)
        is_accepted = isinstance(message, self.accepted)
        if is_accepted:
            self.sent.append(message)
        return is_accepted


def test_send_says_when_a_message_is_dropped():
    carrier, reader = SlowCarrier(Join), HubReader()
    reader.connect(carrier)
    reader.receive([encode(status())], 0)
    rules = [f"rule_{number}" for number in range(10)]
    kept = [rule for rule in rules if reader.send(Found(rule))]
    assert 0 < len(kept) < len(rules)
    carrier.accepted = Join | Found
    reader.send_due()
    assert [message.rule for message in carrier.sent if isinstance(message, Found)] == kept


def test_granted_frames_arrive_while_nobody_polls(socket_dir):
    """Else ZeroMQ answers no heartbeat, connects anew, and aborts the process at the next read."""
    path = socket_dir / "hub.sock"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as hub:
        for option, value in ((zmq.ROUTER_MANDATORY, 1), (zmq.SNDHWM, 1), (zmq.SNDTIMEO, 10_000)):
            hub.setsockopt(option, value)
        hub.linger = 0
        hub.bind(f"ipc://{path}")
        with closing(HubSocket(path)) as socket:
            HubReader().connect(socket)
            eventually(lambda: socket.receive() or hub.poll(0))
            identity, *_ = hub.recv_multipart()
            for _ in range(40):
                hub.send_multipart([identity, bytes(64 << 10)])
