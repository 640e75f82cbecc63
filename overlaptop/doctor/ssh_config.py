"""What ``ssh -G HOST`` prints: the user's config as it holds for one host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overlaptop.remote.failures import one_line


@dataclass(frozen=True, slots=True)
class SshConfig:
    """The parts of it that say how a host is reached. Empty: unknown, or none."""

    user: str
    host: str
    port: str
    jump: str
    """Hosts that are passed on the way."""
    proxy: str
    """A command that reaches the host."""
    shared: bool
    """Whether several connections share one (ControlMaster)."""
    control_path: str

    @classmethod
    def parse(cls, text: str) -> SshConfig:
        """Read it; what is not understood is passed over."""
        values: dict[str, str] = {}
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            values.setdefault(name.lower(), "" if value == "none" else value.strip())
        return cls(
            user=values.get("user", ""),
            host=values.get("hostname", ""),
            port=values.get("port", ""),
            jump=values.get("proxyjump", ""),
            proxy=values.get("proxycommand", ""),
            shared=values.get("controlmaster", "") not in ("", "no", "false"),
            control_path=values.get("controlpath", ""),
        )

    @property
    def missing_control_folder(self) -> Path | None:
        """Where ssh is to put its shared connections, and cannot. None: all is well."""
        if not self.shared or not self.control_path:
            return None
        folder = Path(self.control_path).parent
        # ssh -G has filled in the home directory, but not what is different for each connection.
        return None if "%" in str(folder) or folder.is_dir() else folder

    def __str__(self) -> str:
        """How the host is reached, in words."""
        place = f"{self.user}@{self.host} port {self.port}"
        jump = f", by {self.jump}" if self.jump else ", by a ProxyCommand" if self.proxy else ""
        shared = ", shared by all connections (ControlMaster)" if self.shared and self.control_path else ""
        return one_line(f"{place}{jump}{shared}")
