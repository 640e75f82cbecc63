"""Builds the command line and environment of a job's hub. The agent runs it (reporting/sender.py).

This module is imported in the training process.
"""

import importlib.util
import os
import re
import site
import sys
from pathlib import Path

from overlaptop.jobs.folder import JobFolderError, base_dir
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
    """Return the command line and environment that start the hub of a job, as a daemon.

    The command returns at once. Status 0: there is a hub now. Status 2: there cannot be one, and stderr has
    one line. Raises JobFolderError if the socket directory cannot be used.
    """
    if not sys.executable:
        raise JobFolderError("no hub: this Python does not know its own executable")
    dashboards_socket(key, 1 << 22)  # the longest name: fail here, not in a log that nobody reads
    argv = [
        sys.executable,
        # The hub runs in the job's folder and must not import the user's queue.py or select.py.
        "-P",
        *(["-s"] if sys.flags.no_user_site else []),
        "-m",
        "overlaptop.hub",
        *("--job", key),
        *("--world-size", str(world_size)),
        *("--starter-pid", str(starter_pid)),
        # Joined with "=", because a value may begin with a dash.
        f"--script={script}",
        f"--cwd={cwd}",
    ]
    environment = {
        name: value
        for name, value in os.environ.items()
        # The hub must not inherit libraries preloaded into this process (profilers, allocators), nor
        # variables that change Python's behaviour.
        if name not in ("LD_PRELOAD", "LD_AUDIT")
        and (not name.startswith("PYTHON") or name in _KEPT_PYTHON_VARIABLES)
    }
    if path := import_path():
        environment["PYTHONPATH"] = os.pathsep.join(path)
    # Set explicitly: os.environ may have changed since the agent read it.
    environment["OVERLAPTOP_DIR"] = str(base_dir())
    return argv, environment


def import_path() -> list[str]:
    """Return the folders that the hub and its recorder need for imports, beyond those they search anyway.

    Not all of sys.path: it contains the script's folder, whose modules could shadow the standard library.
    """
    folders = [str(Path(__file__).absolute().parents[2])]
    for package in ("msgpack", "msgspec", "zmq", "numpy", "mcap", "zstandard"):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).absolute().parents[1]))
    known = {*site.getsitepackages(), site.getusersitepackages() if site.ENABLE_USER_SITE else ""}
    needed = [folder for folder in dict.fromkeys(folders) if folder not in known]
    return [folder for folder in needed if re.match(FOLDER, folder)]
