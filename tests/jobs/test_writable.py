"""Where nothing can be written to the socket directory, the job's log and the list of jobs say so."""

import functools
import os
import shutil
import subprocess
import sys

import pytest

MOUNT = 'mount -t tmpfs -o size=64k,mode=700 tmpfs "$OVERLAPTOP_DIR"'
FILL = 'cat /dev/zero > "$OVERLAPTOP_DIR/fill" 2>/dev/null'
LOCK = 'mount -o remount,ro "$OVERLAPTOP_DIR"'


@functools.cache
def why_no_mounts():
    """Why this machine lets us mount nothing; empty: it does."""
    if os.geteuid() or shutil.which("unshare") is None:
        return "mounting a file system of its own needs root and unshare"
    tried = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True
    )
    return tried.stderr.strip()


@pytest.mark.skipif(bool(why_no_mounts()), reason=why_no_mounts())
def test_unwritable_directory_is_named_in_log_and_list(tmp_path):
    sockets = tmp_path / "s"
    sockets.mkdir()
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('trained')\n")
    python = f"'{sys.executable}' -m overlaptop"
    full = f"{FILL}; {python}.agent {script}; echo $?; {python} --list"
    shell = f"{MOUNT} && {{ {full}; {LOCK}; {python} --list; }}"
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "OVERLAPTOP_DIR": str(sockets)}
    command = ["unshare", "-m", "sh", "-c", shell]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **place}, timeout=60)
    assert done.stdout == "trained\n0\n"
    log, *listed = done.stderr.splitlines()
    why = f"cannot write to {sockets}: No space left on device; make room, or set OVERLAPTOP_DIR"
    assert log.startswith(f"overlaptop: no dashboard can see this rank: {why}")
    for line, fault in zip(listed, ("is full", "can only be read"), strict=True):
        assert line.startswith(f"overlaptop: {sockets} {fault}, so no job that starts now can be seen: ")
        assert "OVERLAPTOP_DIR" in line
