"""Where the hub of a job is found: the socket directory, a folder a job, and what is written there.

    $OVERLAPTOP_DIR, else <temporary directory>/overlaptop-<uid>     mode 0700, ours, not a link
      <job key>/
        hub.lock          held with flock by the hub for as long as it lives
        ranks.sock        unix stream: ranks speak to the hub
        dash-<pid>.sock   ZeroMQ ipc: dashboards speak to the hub
        job.json          JobRecord
        hub.log           the hub's stderr
        search.msgpack    the search that goes on, for a hub that takes this one's place
        commands.msgpack  the commands that are under way, likewise
      changes.jsonl       what was changed of any job, see change_log.py
      launch-<pid>-<owner>.sock   where a job is handed to its next owner, see launch/supervised.py

This module is imported in the training process.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import json
import os
import re
import site
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from overlaptop.wire.bounds import Int64
from overlaptop.wire.folders import UntrustedFolderError, open_private, open_trusted, temporary_folder
from overlaptop.wire.processes import is_alive, process_start_time
from overlaptop.wire.protocol import JOB_KEY

LOCK_NAME = "hub.lock"
LOG_NAME = "hub.log"
SEARCH_NAME = "search.msgpack"
COMMANDS_NAME = "commands.msgpack"
MAX_LOG_BYTES = 1 << 16
_RANKS_NAME = "ranks.sock"
_RECORD_NAME = "job.json"

_OUR_FILES = (
    r"\A(hub\.lock|hub\.log|ranks\.sock|dash-\d+\.sock"
    r"|(job\.json|search\.msgpack|commands\.msgpack)(\.\d+)?)\Z"
)

_MAX_SOCKET_PATH_BYTES = 107
"""sun_path of Linux, less the closing NUL."""
_MAX_RECORD_BYTES = 1 << 18
_MAX_FOLDERS = 16
_MAX_FOLDER_CHARS = 4096
_FOLDER = r"\A/[^:\x00-\x1f]*\Z"
Folder = Annotated[str, Meta(pattern=_FOLDER, max_length=_MAX_FOLDER_CHARS)]
"""Absolute, and one entry of PYTHONPATH whatever is in its name."""


class EndpointError(Exception):
    """The socket directory, a job's folder or a socket cannot be used; the text is one line."""


def check_key(key: str) -> str:
    """The key itself, if it may name a folder; EndpointError otherwise."""
    if not re.match(JOB_KEY, key):
        raise EndpointError(f"job key {key[:60]!r} is not 1 to 40 of the characters a-z, 0-9 and -")
    return key


def base_dir(create: bool = True) -> Path:
    """The socket directory, absolute.

    Raises EndpointError when it is not a directory of ours that is closed to all others, when others could
    put another one in its place, or when it cannot be made. With ``create=False`` a directory that does
    not exist is no error.
    """
    named = os.environ.get("OVERLAPTOP_DIR")
    path = Path(named or temporary_folder() / f"overlaptop-{os.geteuid()}").absolute()
    _check_private(path, create=create)
    return path


def job_dir(key: str, create: bool = False) -> Path:
    """The folder of a job, whether or not it exists. EndpointError as from :func:`base_dir`."""
    path = base_dir(create) / check_key(key)
    _check_private(path, create=create)
    return path


def _check_private(path: Path, *, create: bool) -> None:
    """EndpointError unless a folder is ours, closed to all others, and nobody can put another in its place.

    ``create`` makes it where there is none; else one that does not exist is no error. Raises OSError where
    there is no descriptor to look with, whatever the folder is.
    """
    try:
        above = open_trusted(path.parent)
        try:
            os.close(open_private(path, above, create=create))
        finally:
            os.close(above)
    except UntrustedFolderError as refusal:
        raise EndpointError(f"{refusal}; OVERLAPTOP_DIR can name another folder") from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        if create or not isinstance(error, FileNotFoundError):
            verb = "create" if create else "use"
            raise EndpointError(f"cannot {verb} {path}: {error.strerror}: set OVERLAPTOP_DIR") from None


def ranks_socket(key: str) -> Path:
    """The unix socket on which the hub of this job listens for ranks."""
    return _socket(key, _RANKS_NAME)


def dashboards_socket(key: str, hub_pid: int) -> Path:
    """The ZeroMQ ipc path of a hub. The pid is in it since ``bind`` would steal a living hub's path."""
    return _socket(key, f"dash-{hub_pid}.sock")


def _socket(key: str, name: str) -> Path:
    path = job_dir(key) / name
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH_BYTES:
        raise EndpointError(
            f"{path} is {length} bytes long, a socket's path may have {_MAX_SOCKET_PATH_BYTES}: "
            "set OVERLAPTOP_DIR to a shorter directory"
        )
    return path


# Records


class JobRecord(msgspec.Struct, frozen=True):
    """The record of a job in its folder: ``job.json``."""

    protocol: Int64
    job: Annotated[str, Meta(pattern=JOB_KEY)]
    script: str
    cwd: str
    host: str
    world_size: Int64
    python: str
    """Interpreter of the job, in which overlaptop can be imported."""
    starter_pid: Int64
    starter_start_ticks: Int64 | None
    """Of the process that started the hub, a rank; None if it had ended before the hub could look."""
    hub_pid: Int64
    hub_start_ticks: Int64
    started_ns: Int64
    """Unix time at which a hub saw this job first."""
    dashboard_socket: Annotated[str, Meta(pattern=_OUR_FILES)]
    """Name of the hub's ZeroMQ socket in the job's folder."""
    rank_pids: tuple[Int64, ...]
    """Of the ranks connected now, by rank."""
    import_path: Annotated[tuple[Folder, ...], Meta(max_length=_MAX_FOLDERS)] = ()
    """Folders that `python` needs on PYTHONPATH to import overlaptop, besides those it searches anyway."""
    ended: bool = False
    """Ranks were connected, and none is any more."""

    @property
    def gone(self) -> bool:
        """Whether none of the job's processes is left that could start a hub again.

        To be asked once its hub has ended: a job that was killed together with it reports no end.
        """
        if is_alive(self.starter_pid, self.starter_start_ticks):
            return False
        try:
            return all(process_start_time(pid) is None for pid in self.rank_pids)
        except OSError:
            return False  # /proc cannot be read just now

    @property
    def hub_alive(self) -> bool:
        """Whether the hub that wrote this still runs."""
        return is_alive(self.hub_pid, self.hub_start_ticks)

    @property
    def dashboard_path(self) -> Path:
        """The hub's ZeroMQ socket."""
        return job_dir(self.job) / self.dashboard_socket


def write_job(record: JobRecord) -> None:
    """Writes ``job.json``."""
    text = json.dumps(msgspec.structs.asdict(record), indent=1) + "\n"
    write_whole(job_dir(record.job) / _RECORD_NAME, text.encode())


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, whole. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(data)
    new.replace(path)


def read_job(key: str) -> JobRecord | None:
    """The record of this job; None when there is none that can be understood."""
    try:
        values = json.loads(read_regular(job_dir(key) / _RECORD_NAME, _MAX_RECORD_BYTES))
        record = msgspec.convert(values, JobRecord)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError, EndpointError):
        return None
    return record if record.job == key else None


def read_regular(path: Path, most_bytes: int) -> bytes:
    """A small file of ours, whole. Raises OSError, also where it is longer, or a link or no file at all."""
    # O_NONBLOCK: opening a FIFO of this name must not wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a file")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(f"{path} is too long")
    return data


def list_jobs() -> list[JobRecord]:
    """The jobs of this user on this machine whose hub is alive, the newest first.

    What is not a job is passed over. Raises EndpointError when the socket directory is not to be
    trusted; one that does not exist has no jobs.
    """
    records = [record for key in _keys() if (record := read_job(key)) and record.hub_alive]
    return sorted(records, key=lambda record: record.started_ns, reverse=True)


def clean_stale() -> None:
    """Removes the folders of jobs whose hub and starter are gone and whose lock nobody holds."""
    for key in _keys():
        with suppress(OSError, EndpointError):
            _clean(key)


def remove_job_files(folder: Path) -> None:
    """Empties and removes a job's folder; the caller holds its lock. Files of others stay, and so does
    then the folder.
    """
    names = [path.name for path in folder.iterdir() if re.match(_OUR_FILES, path.name)]
    # The lock goes last: a hub that starts meanwhile waits for it, finds it removed, and begins anew.
    for name in sorted(names, key=LOCK_NAME.__eq__):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def forget_under_way(folder: Path) -> None:
    """Removes what a hub kept there for the next one of its job: another job has the key now, as the one
    after it has where both meet at the same port. The caller holds the lock.
    """
    for name in (SEARCH_NAME, COMMANDS_NAME):
        with suppress(OSError):
            (folder / name).unlink()


def try_lock(folder: Path, create: bool) -> int | None:
    """An open descriptor that holds this folder's hub lock; None when another has it.

    The lock is free again as soon as the last copy of the descriptor is closed, however its process
    ended. Raises OSError when the lock file cannot be opened.
    """
    path = folder / LOCK_NAME
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A file that was removed or replaced before it was locked guards nothing.
        if os.fstat(descriptor).st_ino == path.lstat().st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _keys() -> list[str]:
    try:
        return [path.name for path in base_dir(create=False).iterdir() if re.match(JOB_KEY, path.name)]
    except OSError:
        return []


def _clean(key: str) -> None:
    record = read_job(key)
    if record is not None and (
        record.hub_alive or is_alive(record.starter_pid, record.starter_start_ticks)
    ):
        return
    folder = job_dir(key)
    try:
        lock = try_lock(folder, create=False)
    except FileNotFoundError:
        remove_job_files(folder)
        return
    if lock is not None:
        try:
            remove_job_files(folder)
        finally:
            os.close(lock)


# Starting a hub

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
    2 with one line on stderr when there cannot be one. Raises EndpointError when the socket directory
    cannot be used.
    """
    if not sys.executable:
        raise EndpointError("no hub: this Python does not know its own executable")
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
    return [folder for folder in needed if re.match(_FOLDER, folder)]
