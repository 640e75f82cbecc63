"""A job that outlives its line: the relay that started it keeps it, the one that comes after speaks for it.

A relay listens from its first order on, in the socket directory, at a name that has its pid and the owner
of its orders (RelayLaunch.owner). It answers when its own line is over. The relay of the next line finds it
by the owner, passes the orders on to it and its words back: the job stays with the process that started it,
and whose end ends it. Between the two are frames of RelayLaunch and RelayLaunchStatus.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from overlaptop.relay.relay import Orders
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.endpoints import EndpointError, JobRecord, base_dir, list_jobs
from overlaptop.wire.peers import check_listener
from overlaptop.wire.relaying import RelayLaunch, RelayLaunchStatus

_READ_BYTES = 1 << 16
_SEND_S = 2.0
"""For whoever came to read what is said; one that does not is left."""
_LIST_S = 0.5
_LOST = "the line was lost, and it was ended, or not begun"
_KEEPER_LOST = "the process that kept it there has ended, and it with that"


class Door:
    """Where a relay that keeps a job is reached by the one that comes after."""

    def __init__(self, orders: Orders) -> None:
        """``orders``: this relay's own, which the visitor's go to."""
        self._orders = orders
        self._owner = ""
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._visitor: socket.socket | None = None
        """Who came last: the one before speaks for a line that was lost, too."""
        self._reader = FrameReader()
        self._said: RelayLaunchStatus | None = None
        """To that visitor."""
        self._jobs: Sequence[JobRecord] = ()
        self._list_due_s = float("-inf")

    def open(self, owner: str) -> None:
        """Be found by this owner from now on. Where that cannot be, nobody takes the job over."""
        if self._listener is not None or not owner:
            return
        listener = _unix_socket()
        try:
            path = base_dir() / f"relay-{os.getpid()}-{owner}.sock"
            path.unlink(missing_ok=True)  # of another process that had this pid
            listener.bind(os.fspath(path))
            self._path = path
            listener.listen()
        except (OSError, EndpointError):
            listener.close()
        else:
            self._owner, self._listener = owner, listener

    @property
    def is_open(self) -> bool:
        """Whether this relay can be found."""
        return self._listener is not None

    @property
    def knocked(self) -> bool:
        """Whether somebody waits to be let in."""
        return self._listener is not None and bool(_readable(0.0, self._listener))

    def serve(self, wait_s: float) -> bool:
        """Let in who waits and obey who is there, for about ``wait_s``; returns whether anybody is."""
        doors = [each for each in (self._listener, self._visitor) if each is not None]
        ready = _readable(wait_s, *doors)
        if self._listener in ready:
            self._admit()
        elif self._visitor in ready:
            self._hear()
        if self._visitor is not None:
            self._tell()
        return self._visitor is not None

    def close(self) -> None:
        """Be found no more."""
        self._leave()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()

    def _admit(self) -> None:
        assert self._listener is not None
        with suppress(OSError):  # gone already
            visitor, _ = self._listener.accept()
            self._leave()
            visitor.settimeout(_SEND_S)
            self._visitor = visitor

    def _hear(self) -> None:
        assert self._visitor is not None
        try:
            data = self._visitor.recv(_READ_BYTES)
            if not data:
                self._leave()
            for payload in self._reader.feed(data):
                order = decode(payload)
                if not isinstance(order, RelayLaunch) or order.owner != self._owner:
                    raise WireError("not for this relay")
                self._orders.take(order)
        except (OSError, WireError):
            self._leave()

    def _tell(self) -> None:
        assert self._visitor is not None
        now_s = time.monotonic()
        if now_s >= self._list_due_s:
            self._list_due_s = now_s + _LIST_S
            with suppress(OSError, EndpointError):
                self._jobs = list_jobs()
        status = self._orders.status(self._jobs)
        if status is None or status == self._said:
            return
        self._said = status
        try:
            self._visitor.sendall(frame(encode(status)))
        except TimeoutError:
            self._leave()
        except OSError:
            pass  # it has gone: what it said before that is still to be read

    def _leave(self) -> None:
        if self._visitor is not None:
            self._visitor.close()
        self._visitor, self._said, self._reader = None, None, FrameReader()


class Keeper:
    """The relay that keeps what was started over the line before, as the one that came after sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = FrameReader()
        self._order: RelayLaunch | None = None
        """The newest."""
        self._status: RelayLaunchStatus | None = None
        self.over = False
        """It has ended, and its job with it."""

    @classmethod
    def of(cls, owner: str) -> Keeper | None:
        """The one that has an order of this owner; None: there is none, or none any more."""
        try:
            paths = sorted(base_dir(create=False).glob(f"relay-*-{owner}.sock"))
        except (OSError, EndpointError):
            return None
        for path in paths:
            connection = _unix_socket()
            try:
                connection.connect(os.fspath(path))
                check_listener(connection.fileno())
            except (OSError, EndpointError):  # of a relay that was killed, or of another user
                connection.close()
                continue
            return cls(connection)
        return None

    def take(self, order: RelayLaunch) -> None:
        """As Orders says."""
        self._order, data = order, frame(encode(order))
        try:
            written = self._connection.send(data)
        except OSError:
            written = 0
        if written < len(data):
            self._lose()

    def status(self) -> RelayLaunchStatus | None:
        """The newest word of it."""
        try:
            while not self.over:
                data = self._connection.recv(_READ_BYTES)
                if not data:
                    self._lose()
                for payload in self._reader.feed(data):
                    message = decode(payload)
                    if isinstance(message, RelayLaunchStatus):
                        self._status = message
        except BlockingIOError:
            pass
        except (OSError, WireError):
            self._lose()
        return self._status

    def close(self) -> None:
        """Leave it alone; it ends its job if nobody else comes."""
        self._connection.close()

    def _lose(self) -> None:
        self._connection.close()
        self.over = True
        order, status = self._order, self._status
        answered = status is not None and order is not None and status.number == order.number
        if order is not None and not (answered and status is not None and status.ended):
            self._status = lost(order, _KEEPER_LOST)


class LineOrders:
    """The orders of one line (see Orders): carried out here, or by the relay that keeps the job."""

    def __init__(self, own: Orders, door: Door) -> None:
        """``own`` carries them out here; ``door`` is opened for whoever comes after this line."""
        self._own = own
        self._door = door
        self._keeper: Keeper | None = None
        self._lost: RelayLaunchStatus | None = None
        """Of an order that was said again and that no relay keeps."""

    def take(self, order: RelayLaunch) -> None:
        """As Orders says."""
        asked = order.again and not self._door.is_open
        if asked and self._keeper is None:
            self._keeper = Keeper.of(order.owner)
        if self._keeper is not None and not self._keeper.over:
            self._keeper.take(order)
            return
        self._keeper, self._lost = None, lost(order, _LOST) if asked else None
        if not asked:
            self._door.open(order.owner)
            self._own.take(order)

    def status(self, jobs: Sequence[JobRecord]) -> RelayLaunchStatus | None:
        """As Orders says."""
        return self._keeper.status() if self._keeper is not None else self._lost or self._own.status(jobs)

    def close(self) -> None:
        """Leave what another relay keeps."""
        if self._keeper is not None:
            self._keeper.close()


def lost(order: RelayLaunch, how: str) -> RelayLaunchStatus:
    """What becomes of an order that nobody knows of any more."""
    if not order.words:
        return RelayLaunchStatus(order.number, "nothing", False, "", "", ())
    return RelayLaunchStatus(order.number, "over", False, how, "", ())


def _unix_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    return made


def _readable(wait_s: float, *sockets: socket.socket) -> list[socket.socket]:
    poller = select.poll()
    for each in sockets:
        poller.register(each, select.POLLIN)
    ready = {descriptor for descriptor, _ in poller.poll(wait_s * 1000)}
    return [each for each in sockets if each.fileno() in ready]
