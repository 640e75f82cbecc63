"""Gives the script Python's usual sys.path, and its own modules if they shadow ones imported already.

A script may import a random.py next to it. The agent has imported the standard library's random long
before, and the script must not get that one. The agent keeps its modules. Its imports after the script's
start are its own modules, or modules that torch imports, too.
"""

import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

import overlaptop


def begin(folder: str | None) -> None:
    """Hand imports over to the script: ``folder`` (or an archive), if any, is searched first."""
    if not overlaptop.STARTED_BY_DASH_M and not sys.flags.safe_path:
        del sys.path[0]  # the folder of our caller, such as a profiler
    if folder is not None:
        _forget_shadowed(folder)
        sys.path.insert(0, folder)


def _forget_shadowed(folder: str) -> None:
    """Forget modules imported before the script that it would find in ``folder`` instead."""
    imported = list(sys.modules)
    start = "runpy" if "runpy" in sys.modules else "overlaptop"  # a script has the earlier ones as well
    since = {name for name in imported[imported.index(start) :] if "." not in name}
    shadowed = {name for name in since - {"overlaptop", "__main__"} if _is_shadowed(name, folder)}
    if "typing" in shadowed:
        shadowed |= since & {"typing_extensions"}  # msgspec's copy uses another typing than the script's
    for name in imported:
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]


def _is_shadowed(name: str, folder: str) -> bool:
    if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
        return False  # these precede any folder
    found = PathFinder.find_spec(name, [folder])
    # A folder without __init__.py counts only if nothing else is found.
    return found is not None and found.loader is not None
