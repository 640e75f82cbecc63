"""``overlaptop relay --stdio``: the far end of a dashboard's line to this host. A dashboard starts it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from overlaptop import __version__
from overlaptop.console import CommandError, say
from overlaptop.launch.launcher import LaunchError
from overlaptop.launch.local import LocalLauncher
from overlaptop.launch.request import LaunchPhase, LaunchRequest
from overlaptop.relay.handover import Door, LineOrders
from overlaptop.relay.relay import Relay
from overlaptop.wire.endpoints import JobRecord
from overlaptop.wire.relaying import (
    MAX_OUTPUT_CHARS,
    MAX_OUTPUT_LINES,
    RelayLaunch,
    RelayLaunchStatus,
)

KEPT_S = 60.0
"""A job that was started over the line goes on for so long after the line's end."""
_LOOK_S = 0.1
_RUNNING_LINES = 40
"""Of the output of a job that runs; of one that failed all that is kept."""
_PHASES = {
    LaunchPhase.NOTHING: "nothing",
    LaunchPhase.ENDING: "ending",
    LaunchPhase.RUNNING: "running",
    LaunchPhase.OVER: "over",
}


def run(*, readonly: bool) -> int:
    """Relay over standard input and output until the near end hangs up."""
    if os.isatty(0) or os.isatty(1):
        raise CommandError(
            "relay --stdio is not for a terminal: `overlaptop HOST` starts it on that host", 2
        )
    # What some library prints must not come between the frames.
    reads, writes = os.dup(0), os.dup(1)
    _silence(0, os.O_RDONLY)
    os.dup2(2, 1)
    stage = LocalLauncher()
    orders = StageOrders(stage)
    door = Door(orders)
    line_orders = None if readonly else LineOrders(orders, door)
    relay = Relay(
        reads,
        writes,
        version=__version__,
        gpus=_count_gpus(),
        readonly=readonly,
        orders=line_orders,
        wanted_elsewhere=lambda: door.knocked,
    )
    ended = threading.Event()

    def end(_number: int, _frame: object) -> None:
        relay.stop()
        ended.set()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    why = relay.run()
    os.close(writes)
    os.close(reads)
    if line_orders is not None:
        line_orders.close()
    if orders.under_way:
        with suppress(OSError):  # with the line its standard error may be gone, too
            say(f"{why}; {stage.running or 'what was ordered'} goes on for {KEPT_S:.0f} s")
        with suppress(OSError):
            # The host's sshd waits for whoever could still write.
            for descriptor in (1, 2):
                _silence(descriptor, os.O_WRONLY)
        keep(orders, door, ended)
    door.close()
    stage.clear()
    return 0


class StageOrders:
    """Launch requests that a LocalLauncher carries out; what was asked for is checked by its plan."""

    def __init__(self, stage: LocalLauncher) -> None:
        self._stage = stage
        self._lock = threading.Lock()
        self._order: RelayLaunch | None = None
        """The newest."""
        self._fault: str | None = None
        """Why the newest order was not carried out; empty: it is; None: it is still being looked at."""

    def take(self, order: RelayLaunch) -> None:
        """As Orders says. One that is said again, and is here already, changes nothing."""
        with self._lock:
            if order.again and self._order is not None and order.number <= self._order.number:
                return
            self._order, self._fault = order, None if order.words else ""
        if not order.words:
            self._stage.stop()
            return
        # A plan may look at the machine for a second. An order that comes meanwhile takes its place.
        threading.Thread(
            target=self._carry_out, args=(order,), name="overlaptop-order", daemon=True
        ).start()

    def status(self, jobs: Sequence[JobRecord]) -> RelayLaunchStatus | None:
        """As Orders says."""
        with self._lock:
            order, fault = self._order, self._fault
        if order is None:
            return None
        if fault:
            return RelayLaunchStatus(order.number, "over", True, fault, "", ())
        status = self._stage.status()
        if fault is None:
            return RelayLaunchStatus(order.number, "ending", False, "", "", (), status.ending)
        lines = self._stage.output()[-(MAX_OUTPUT_LINES if status.failed else _RUNNING_LINES) :]
        runs = status.phase is LaunchPhase.RUNNING
        return RelayLaunchStatus(
            number=order.number,
            phase=_PHASES[status.phase],
            failed=status.failed,
            how=status.how,
            command_line=status.command_line,
            output=tuple(line[:MAX_OUTPUT_CHARS] for line in lines),
            ending=status.ending,
            job=next((job.job for job in jobs if runs and self._stage.owns(job)), ""),
        )

    @property
    def under_way(self) -> bool:
        """Whether what was ordered is not over."""
        return (status := self.status(())) is not None and not status.ended

    def _carry_out(self, order: RelayLaunch) -> None:
        try:
            plan = self._stage.plan(LaunchRequest(order.words[0], order.words[1:], order.nproc))
        except Exception as fault:  # noqa: BLE001 - on a thread of its own: nobody else would hear of it
            self._refuse(order, f"{type(fault).__name__}: {fault}")
            return
        if plan.fault:
            self._refuse(order, plan.fault)
            return
        with self._lock:
            if order is not self._order:
                return
            try:
                self._stage.start(plan)
                self._fault = ""
            except (LaunchError, ValueError) as fault:
                self._fault = str(fault)

    def _refuse(self, order: RelayLaunch, why: str) -> None:
        with self._lock:
            if order is self._order:
                self._fault = why


def keep(orders: StageOrders, door: Door, ended: threading.Event) -> None:
    """Keep what was ordered until it is over, or KEPT_S have passed without anybody who asks for it at the
    door, or this process is told to end.
    """
    until_s = time.monotonic() + KEPT_S
    while not ended.is_set():
        if door.serve(_LOOK_S):
            until_s = time.monotonic() + KEPT_S
        elif not orders.under_way or time.monotonic() >= until_s:
            return


def _silence(descriptor: int, flags: int) -> None:
    null = os.open(os.devnull, flags)
    os.dup2(null, descriptor)
    os.close(null)


def _count_gpus() -> int | None:
    """How many GPUs the host shows; None where that cannot be seen."""
    try:
        names = [entry.name for entry in Path("/dev").iterdir()]
    except OSError:
        return None
    return sum(name.startswith("nvidia") and name[len("nvidia") :].isdigit() for name in names)
