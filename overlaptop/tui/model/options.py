"""What the dashboard is given: the user's options."""

from __future__ import annotations

from dataclasses import dataclass

from overlaptop.fleet.session import Connections
from overlaptop.launch.request import JobLauncher

MAX_REFRESH_HZ = 10.0


@dataclass(frozen=True, slots=True)
class TuiOptions:
    """How the dashboard looks and what it may start."""

    launcher: JobLauncher | None = None
    """Starts workloads; what it has started ends with the dashboard. None: none may be started."""
    ascii: bool = False
    """Only ASCII characters, for terminals whose font lacks block characters or draws them two wide."""
    theme: str | None = None
    """Name of a theme; the default is the dark one, or without colours where NO_COLOR is set."""
    refresh_hz: float = 4.0
    """Redraws a second; lower it on a slow line. At most MAX_REFRESH_HZ."""
    readonly: bool = False
    """Nothing can be changed from here: neither the job nor which workload runs."""
    connections: Connections | None = None
    """To the hosts of the Snapshots' nodes; None: the job runs here."""
