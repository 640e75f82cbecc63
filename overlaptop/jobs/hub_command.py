"""How the hub of a job is started: command line and environment. The agent runs it (reporting/sender.py).

This module is imported in the training process.
"""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
from pathlib import Path

from overlaptop.jobs.folder import JobFolderError, base_dir, check_key
from overlaptop.jobs.record import FOLDER
from overlaptop.jobs.sockets import dashboards_socket

_KEPT_PYTHON_VARIABLES = {
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "PYTHONPLATLIBDIR",
    "PYTHONPYCACHEPREFIX",
    "PYTHONUSERBASE",
    "PYTHONUTF8",
}


def hub_command(
    key: str, script: str, world_size: int, starter_pid: int, cwd: str
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment that start the hub of a job, with this process's interpreter.

    The command returns at once, leaving the hub behind as a daemon: status 0 when there is a hub now,
    2 with one line on stderr when there cannot be one. Raises JobFolderError when the socket directory
    cannot be used.
    """
    if not sys.executable:
        raise JobFolderError("no hub: this Python does not know its own executable")
    dashboards_socket(key, 1 << 22)  # the longest name: refused here, not in a log that nobody reads
    argv = [
        sys.executable,
        # The hub runs in the job's folder and must not import the user's queue.py or select.py.
        "-P",
        *(["-s"] if sys.flags.no_user_site else []),
        "-m",
        "overlaptop.hub",
        *("--job", check_key(key)),
        *("--world-size", str(world_size)),
        *("--starter-pid", str(starter_pid)),
        # Joined with "=": a value may begin with a dash.
        f"--script={script}",
        f"--cwd={cwd}",
    ]
    environment = {
        name: value
        for name, value in os.environ.items()
        # What preloads into this process (profilers, allocators) or changes how Python behaves has no
        # business in the hub.
        if name not in ("LD_PRELOAD", "LD_AUDIT")
        and (not name.startswith("PYTHON") or name in _KEPT_PYTHON_VARIABLES)
    }
    if path := import_path():
        environment["PYTHONPATH"] = os.pathsep.join(path)
    # Said outright: os.environ may have been changed since the agent looked.
    environment["OVERLAPTOP_DIR"] = str(base_dir())
    return argv, environment


def import_path() -> list[str]:
    """The folders from which the hub imports what it needs, less those it searches anyway.

    Not all of sys.path: that has the script's folder in it, whose modules would take the place of the
    standard library's.
    """
    folders = [str(Path(__file__).absolute().parents[2])]
    for package in ("msgpack", "msgspec", "zmq"):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).absolute().parents[1]))
    known = {*site.getsitepackages(), site.getusersitepackages() if site.ENABLE_USER_SITE else ""}
    needed = [folder for folder in dict.fromkeys(folders) if folder not in known]
    return [folder for folder in needed if re.match(FOLDER, folder)]
