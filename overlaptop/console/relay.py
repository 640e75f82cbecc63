"""The work of ``overlaptop relay --stdio``: how a dashboard on another host reaches this host's jobs."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from overlaptop import __version__
from overlaptop.console import CommandError, print_message
from overlaptop.launch.for_other_host import WITHOUT_OWNER_S, RelayedLauncher
from overlaptop.launch.launcher import gpu_device_files
from overlaptop.launch.local import LocalLauncher
from overlaptop.relay.relay import Relay


def run(*, readonly: bool) -> int:
    """Relay over standard input and output until the client closes its end."""
    if os.isatty(0) or os.isatty(1):
        raise CommandError(
            "relay --stdio is not for a terminal: `overlaptop HOST` starts it on that host", 2
        )
    # What some library prints must not come between the frames.
    reads, writes = os.dup(0), os.dup(1)
    _redirect_to_null(0, os.O_RDONLY)
    os.dup2(2, 1)
    local = LocalLauncher()
    launcher = RelayedLauncher(local)
    relay = Relay(
        reads, writes, version=__version__, gpus=gpu_device_files(), readonly=readonly, launcher=launcher
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: relay.stop())
    why = relay.run()
    os.close(writes)
    os.close(reads)
    if launcher.under_way:
        with suppress(OSError):  # with the connection its standard error may be gone, too
            print_message(
                f"{why}; {local.running or 'what was requested'} goes on for {WITHOUT_OWNER_S:.0f} s"
            )
        with suppress(OSError):
            # The host's sshd waits for whoever could still write.
            for descriptor in (1, 2):
                _redirect_to_null(descriptor, os.O_WRONLY)
    launcher.release()
    return 0


def _redirect_to_null(descriptor: int, flags: int) -> None:
    null = os.open(os.devnull, flags)
    os.dup2(null, descriptor)
    os.close(null)
