"""``--gather``: tells the hubs of all nodes the address of the first node's, through the job's store.

The store has no authentication, so it gets the address only. The hubs' own key keeps others out.
"""

import os
import sys
import threading
from collections.abc import Callable

from overlaptop.agent import placement
from overlaptop.agent.control.two_phase_commit import job_store
from overlaptop.agent.isolation.fault_barrier import warn
from overlaptop.agent.isolation.threads import Thread
from overlaptop.agent.reporting.sender import Sender
from overlaptop.wire.joining import Gather

_KEY = "gather"
FIRST_LOOK_S, LAST_LOOK_S = 0.2, 5.0


class HubGathering:
    """One rank's part. Only the first rank of each node has one."""

    def __init__(self, notice: Callable[[str, str], None], ending: threading.Event) -> None:
        """``ending``: set when the job ends."""
        self._notice = notice
        self._ending = ending
        self._address: tuple[str, int] | None = None  # The root's. Port 0: it refused.
        self._refusal = ""
        self._is_looking = False

    def serve(self, sender: Sender) -> None:
        """Ask the hub to take part, and report its refusal. Call it once there is a process group, on the
        agent's thread.
        """
        place, answer = sender.place, sender.gathered
        if not (place.starts_hub or place.rank == 0):
            return
        if place.local_world_size == place.world_size:
            here, master = os.environ.get("LOCAL_WORLD_SIZE"), _master_host()
            if here not in (None, str(place.world_size)) and placement.is_loopback(master):
                self._refuse(
                    f"MASTER_ADDR {master} is each node itself: set it to the first node's address"
                )
            return
        if answer is not None:
            self._refuse(answer.refusal)
        if place.rank == 0:
            if answer is not None and self._address is None:
                self._address = answer.host, answer.port
                self._start(self._publish)
            # A hub that replaces the first one binds the same port: the others know only that.
            host, port = self._address if self._address and self._address[1] else (_master_host(), 0)
            sender.put_state(Gather(0, is_root=True, host=host, port=port))
            return
        if not self._is_looking:
            self._is_looking = True
            self._start(self._look)
        if self._address is not None and self._address[1]:
            sender.put_state(Gather(place.rank, False, *self._address))

    def _refuse(self, why: str) -> None:
        """Say why nodes are not gathered, once; empty: they are."""
        is_new, self._refusal = why != self._refusal, why
        if why and is_new:
            warn(f"--gather: {why}")
            self._notice("warning", f"--gather: {why}")

    def _start(self, use_store: Callable[[], None]) -> None:
        """Call this on a thread of its own: the store may block."""

        def run() -> None:
            try:
                use_store()
            except Exception as fault:  # noqa: BLE001 - this node is not gathered
                if not self._ending.is_set():
                    self._notice("warning", f"--gather: the job's store failed: {fault}"[:300])

        try:
            Thread(run)
        except RuntimeError as fault:
            self._notice("warning", f"--gather: {fault}")

    def _publish(self) -> None:
        assert self._address is not None
        host, port = self._address
        job_store(_KEY).set("address", f"{port} {host}")

    def _look(self) -> None:
        store, pause_s = job_store(_KEY), FIRST_LOOK_S
        while not store.check(["address"]):
            if self._ending.wait(pause_s):
                return
            pause_s = min(LAST_LOOK_S, pause_s * 1.5)
        port, _, host = store.get("address").decode().partition(" ")
        self._address = host, int(port)


def _master_host() -> str:
    return os.environ.get("MASTER_ADDR") or placement.meeting_place(sys.modules["torch.distributed"]).get(
        "MASTER_ADDR", ""
    )
