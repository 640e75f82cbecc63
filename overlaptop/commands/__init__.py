"""The commands, one module each, with its options, its help and ``run(words)``.

A module is light to import, since ``--help`` needs no more; ``run`` imports what does the work.
"""

from __future__ import annotations

COMMANDS = {
    "analyze": "analyze",
    "capture": "capture",
    "changes": "changes",
    "demo": "demo",
    "doctor": "doctor",
    "estimate": "estimate",
    "relay": "relay",
    "set": "setting",
    "slack": "slack",
    "tune": "tune",
}
"""What a command line may begin with, and its module; all else is a host or an option of ``watch``."""
