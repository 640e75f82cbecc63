"""Gives the script the sys.path that Python gives it, and the modules of its own that it would find there.

A script may have a random.py beside it and import that. The agent has imported the standard library's long
before, and the script must not be given that one. The agent keeps what it has; what it imports once the
script runs is its own, or what torch imports as well.
"""

from __future__ import annotations

import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

import overlaptop


def begin(folder: str | None) -> None:
    """Imports are the script's from here on: ``folder`` (or an archive), if any, is searched first."""
    if not overlaptop.STARTED_BY_DASH_M and not sys.flags.safe_path:
        del sys.path[0]  # of what has started us, such as a profiler
    if folder is not None:
        _forget_shadowed(folder)
        sys.path.insert(0, folder)


def _forget_shadowed(folder: str) -> None:
    """Forget what was imported before the script, and what it would find in ``folder`` instead."""
    imported = list(sys.modules)
    start = "runpy" if "runpy" in sys.modules else "overlaptop"  # what came before, a script has as well
    since = {name for name in imported[imported.index(start) :] if "." not in name}
    shadowed = {name for name in since - {"overlaptop", "__main__"} if _is_shadowed(name, folder)}
    if "typing" in shadowed:
        shadowed |= since & {"typing_extensions"}  # msgspec's, of another typing than the script's
    for name in imported:
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]


def _is_shadowed(name: str, folder: str) -> bool:
    if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
        return False  # these come before any folder
    found = PathFinder.find_spec(name, [folder])
    # A folder without __init__.py counts only where there is nothing else.
    return found is not None and found.loader is not None
