"""The user's options for the dashboard."""

from collections.abc import Callable
from dataclasses import dataclass, field

from overlaptop.fleet.recorder import Recorder
from overlaptop.fleet.session import Connections
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.launch.local import LocalLauncher

MAX_REFRESH_HZ = 10.0


@dataclass(frozen=True, slots=True)
class TuiOptions:
    """The dashboard's look, and what it may start."""

    launcher: LocalLauncher | None = None
    """Starts workloads, which end with the dashboard. None: it may start none."""
    ascii: bool = False
    """Use only ASCII characters, for terminals whose font lacks block characters or draws them two cells
    wide."""
    theme: str | None = None
    """Name of a theme; the default is the dark one, or no colours if NO_COLOR is set."""
    refresh_hz: float = 4.0
    """Redraws per second, at most MAX_REFRESH_HZ; lower it on a slow line."""
    readonly: bool = False
    """Change nothing: neither the job nor the running workload."""
    recorder: Recorder = field(default_factory=Recorder)
    """The session's tap."""
    connections: Connections | None = None
    """Connections to the hosts of the Snapshots' nodes; None: the job runs here."""
    on_snapshot: Callable[[Snapshot], object] = lambda _snapshot: None
    """Called with the newest Snapshot at each drawing, also while the screen is paused."""
