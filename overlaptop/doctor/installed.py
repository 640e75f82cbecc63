"""Whether overlaptop itself is whole. Imports none of what may be missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from overlaptop import __version__
from overlaptop.doctor.findings import Finding, fault, ok

NEEDED = ("msgpack", "msgspec", "numpy", "textual", "zmq")
_PACKAGES = {"zmq": "pyzmq"}
"""Where pip knows a module by another name."""


def is_there(module: str) -> bool:
    """Whether it could be imported."""
    return importlib.util.find_spec(module) is not None


def check_installation(has: Callable[[str], bool] = is_there) -> Finding:
    """Whether this interpreter could open the dashboard."""
    missing = [name for name in NEEDED if not has(name)]
    if missing:
        return fault("overlaptop", f"{__version__}, without {', '.join(missing)}", to_install(missing))
    from overlaptop.wire.protocol import PROTOCOL_VERSION

    return ok("overlaptop", f"{__version__}, protocol {PROTOCOL_VERSION}")


def to_install(modules: list[str]) -> str:
    """The command that brings these."""
    return f"pip install {' '.join(_PACKAGES.get(name, name) for name in modules)}"
