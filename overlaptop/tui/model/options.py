"""The user's options for the dashboard."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlaptop.findings.watch import FindingsWatch
from overlaptop.fleet.recorder import Recorder
from overlaptop.launch.local import LocalLauncher
from overlaptop.runs.run_log import RunLog

if TYPE_CHECKING:
    from overlaptop.fleet.hosts_session import HostsSession

LOOK_EVERY_NS, LOOK_SOON_NS = 2_000_000_000, 500_000_000
"""Intervals between two looks for findings, usually and while the job's present state is not known."""


@dataclass(frozen=True, slots=True)
class TuiOptions:
    """The dashboard's look, and what it may start."""

    launcher: LocalLauncher | None = None
    """Starts workloads, which end with the dashboard. None: it may start none."""
    ascii: bool = False
    """Use only ASCII characters: a font may lack block characters, or draw them two cells wide."""
    theme: str | None = None
    """Name of a theme; the default is the dark one, or no colours if NO_COLOR is set."""
    refresh_hz: float = 2.0  # Redraws per second; lower it on a slow line
    readonly: bool = False  # Change nothing: neither the job nor the running workload
    recorder: Recorder = field(default_factory=Recorder)  # The session's tap
    connections: "HostsSession | None" = None
    """Connections to the hosts of the Snapshots' nodes; None: the job runs here."""
    log: RunLog = field(default_factory=lambda: RunLog(watch=FindingsWatch(LOOK_EVERY_NS, LOOK_SOON_NS)))
    """Watches the job's findings, and keeps what its report needs."""
