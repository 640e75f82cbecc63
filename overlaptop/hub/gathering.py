"""Connections between the hubs of one job, on TCP with CURVE (``--gather``).

The root binds, the others connect; neither trusts a peer without the job's key. Each has a ZeroMQ context
of its own, whose I/O thread no local reader waits for. wire/joining.py describes the frames.
"""

import hashlib
import ipaddress
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from overlaptop.jobs.clock import ClockOffset
from overlaptop.jobs.gather_key import GatherError, read_key
from overlaptop.jobs.hub_socket import make_socket
from overlaptop.wire.codec import MAX_BATCH_BYTES, WireError, decode, encode
from overlaptop.wire.joining import (
    MAX_HUBS,
    MAX_NODE_ID_BYTES,
    GatheredHub,
    GatheredHubs,
    HubClock,
    HubHello,
    Pong,
)
from overlaptop.wire.protocol import READER_TIMEOUT_S

_MAX_RECEIVED_AT_ONCE = 256
_ZAP = "inproc://zeromq.zap.01"
_ID_BYTES = 8
_FIRST_TRIPS = 4
"""Round trips to the root, one after the other, before a hub's clock is good enough to list the hub."""
_GREET_S = 3.0
_GOODBYE = [b""]  # From a hub that ends, so that the root need not wait for it
_OPTIONS = {"SNDHWM": 64, "RCVHWM": 64, "MAXMSGSIZE": MAX_BATCH_BYTES, "HANDSHAKE_IVL": 5000}


def _secret() -> tuple[bytes, bytes]:
    """Return the job's secret key and its public key, both as ZeroMQ takes them. Raises GatherError."""
    secret = z85.encode(read_key())
    if not zmq.has("curve"):
        raise GatherError("this libzmq was built without CURVE")
    return secret, zmq.curve_public(secret)


class GatherRoot:
    """The socket on which the other nodes' hubs connect."""

    def __init__(self, host: str, port: int) -> None:
        """Bind. Raises GatherError."""
        secret, self._public = _secret()
        self.address = _own_address(host)
        self._context = zmq.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP)  # before the port: without this socket libzmq admits everybody
        self._router = make_socket(
            self._context,
            zmq.ROUTER,
            CURVE_SERVER=1,
            CURVE_SECRETKEY=secret,
            ROUTER_MANDATORY=1,
            ROUTER_HANDOVER=1,  # a hub that replaces another has its id
            IPV6=int(":" in self.address),
            **_OPTIONS,
        )
        self._hubs: dict[bytes, tuple[GatheredHub, float]] = {}  # Hub, and time when it expires, by node
        try:
            self._router.bind(_endpoint(self.address, str(port or "*")))
        except zmq.ZMQError as error:
            self.close()
            raise GatherError(f"cannot bind {self.address} port {port}: {error.strerror}") from None
        bound = self._router.getsockopt(zmq.LAST_ENDPOINT)
        self.port = int(bytes(bound).rstrip(b"\0").rpartition(b":")[2])

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        return self._zap, self._router

    @property
    def message(self) -> GatheredHubs:
        return GatheredHubs(tuple(hub for _, (hub, _) in sorted(self._hubs.items())))

    def receive(self, now_s: float) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
        """Yield node, reader and batch of what the hubs have sent to readers."""
        self._admit()
        for _ in range(_MAX_RECEIVED_AT_ONCE):
            try:
                node, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) < 2 or len(node) > MAX_NODE_ID_BYTES:
                continue
            if parts[0]:
                yield node, parts[0], parts[1:]
            elif parts[1:] == _GOODBYE:
                self._hubs.pop(node, None)
            else:
                received_ns = time.time_ns()
                with suppress(WireError):
                    hello = decode(parts[1])
                    if isinstance(hello, HubHello) and (node in self._hubs or len(self._hubs) < MAX_HUBS):
                        self.send(node, b"", encode(Pong(hello.sent_ns, received_ns, time.time_ns())))
                        if hello.clock is not None:
                            hub = GatheredHub(node, hello.host, hello.clock)
                            self._hubs[node] = hub, now_s + READER_TIMEOUT_S

    def send(self, node: bytes, reader: bytes, payload: bytes) -> None:
        """Pass a reader's frame on. It is lost if the hub is not connected: readers repeat themselves."""
        with suppress(zmq.ZMQError):
            self._router.send_multipart([node, reader, payload], zmq.NOBLOCK)

    def expire(self, now_s: float) -> None:
        """Forget the hubs that have been silent for READER_TIMEOUT_S."""
        self._hubs = {node: hub for node, hub in self._hubs.items() if hub[1] >= now_s}

    def close(self) -> None:
        for each in self.sockets:
            each.close(linger=0)
        self._context.term()

    def _admit(self) -> None:
        """Answer libzmq's question (ZAP) whether a peer, whose key it has checked, may connect."""
        with suppress(zmq.Again):
            while True:
                version, request, _, _, _, mechanism, *keys = self._zap.recv_multipart(zmq.NOBLOCK)
                is_known = mechanism == b"CURVE" and list(map(z85.encode, keys)) == [self._public]
                status = b"200" if is_known else b"400"
                self._zap.send_multipart([version, request, status, b"", b"", b""])


class RootLink:
    """The connection of another node's hub to the root, which ZeroMQ renews by itself."""

    def __init__(self, host: str, port: int, folder: Path) -> None:
        """Connect. ``folder``: of the job. Raises GatherError."""
        secret, public = _secret()
        self.address, self.port = host, port
        self._clock = ClockOffset()
        self._pongs = 0
        self._greet_due_s = 0.0
        self._context = zmq.Context()
        again = {"CONNECT_TIMEOUT": 5000, "RECONNECT_IVL": 200, "RECONNECT_IVL_MAX": 5000}
        keys = {"CURVE_SERVERKEY": public, "CURVE_PUBLICKEY": public, "CURVE_SECRETKEY": secret}
        own = {"ROUTING_ID": _node_id(folder), **keys}
        self.dealer = make_socket(
            self._context, zmq.DEALER, **_OPTIONS, **again, **own, IPV6=int(":" in host)
        )
        self._breaks = self.dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self.dealer.connect(_endpoint(host, str(port)))
        except zmq.ZMQError as error:
            self.close()
            raise GatherError(f"cannot connect to {host} port {port}: {error.strerror}") from None

    def greet(self) -> None:
        """Tell the root that this hub is there, and ask for its time."""
        offset_ns, residual_ns = self._clock.offset_ns, self._clock.residual_ns
        clock = None
        if offset_ns is not None and residual_ns is not None and self._pongs >= _FIRST_TRIPS:
            clock = HubClock(-offset_ns, residual_ns)
        with suppress(zmq.Again):
            hello = HubHello(socket.gethostname(), time.time_ns(), clock)
            self.dealer.send_multipart([b"", encode(hello)], zmq.NOBLOCK)

    def greet_again(self, now_s: float) -> None:
        if now_s >= self._greet_due_s:
            self._greet_due_s = now_s + _GREET_S
            self.greet()

    def receive(self, payload: bytes, back_ns: int) -> None:
        """Process the root's answer to `greet`, which was back at this Unix time."""
        with suppress(WireError):
            pong = decode(payload)
            if isinstance(pong, Pong):
                self._clock.add(pong, back_ns)
                self._pongs += 1
                if self._pongs <= _FIRST_TRIPS:
                    self.greet()

    def has_broken(self) -> bool:
        """Whether the connection has broken since the last call: batches may be lost."""
        broken = False
        with suppress(zmq.Again):
            while True:
                parse_monitor_message(self._breaks.recv_multipart(zmq.NOBLOCK))
                broken = True
        return broken

    def close(self, linger_ms: int = 0) -> None:
        """Say goodbye and close the connection."""
        with suppress(zmq.Again):
            self.dealer.send_multipart([b"", *_GOODBYE], zmq.NOBLOCK)
        self.dealer.disable_monitor()
        self._breaks.close(linger=0)
        self.dealer.close(linger=linger_ms)
        self._context.term()


def _endpoint(host: str, port: str) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _own_address(host: str) -> str:
    """Return the address of a name of this node. Raises GatherError if other nodes cannot use it."""
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise GatherError(f"no address is known for MASTER_ADDR {host!r}: {error}") from None
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback and host != address:
        raise GatherError(
            f"MASTER_ADDR {host} is {address} here, which other nodes do not reach: set it to an address"
        )
    return address


def _node_id(folder: Path) -> bytes:
    """Identify this node, and the job's folder on it, to the root."""
    boot_id = b""
    with suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    words = socket.gethostname().encode(), boot_id, bytes(folder)
    # libzmq's own ids begin with a zero byte.
    return b"n" + hashlib.sha256(b"\0".join(words)).digest()[:_ID_BYTES]
