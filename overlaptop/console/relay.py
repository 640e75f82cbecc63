"""The work of ``overlaptop relay --stdio``: how a dashboard on another host reaches this host's jobs."""

from __future__ import annotations

import os
import signal

from overlaptop import __version__
from overlaptop.console import CommandError
from overlaptop.relay.relay import Relay


def run(*, readonly: bool) -> int:
    """Relay over standard input and output until the client closes its end."""
    if os.isatty(0) or os.isatty(1):
        raise CommandError(
            "relay --stdio is not for a terminal: `overlaptop HOST` starts it on that host", 2
        )
    # What some library prints must not come between the frames.
    reads, writes = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    relay = Relay(reads, writes, version=__version__, readonly=readonly)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: relay.stop())
    relay.run()
    os.close(writes)
    os.close(reads)
    return 0
