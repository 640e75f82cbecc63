"""Processes are named for good."""

import os
import shutil
import subprocess
import sys

from overlaptop.jobs.processes import is_alive, process_start_time


def test_a_process_is_known_by_pid_and_start_time(gone):
    pid, start = gone
    assert start > 0
    assert process_start_time(pid) is None
    assert process_start_time(0) is None
    assert process_start_time(-1) is None
    me = process_start_time(os.getpid())
    assert is_alive(os.getpid(), me)
    assert not is_alive(os.getpid(), me - 1)
    assert not is_alive(os.getpid(), None)


def test_a_process_with_an_odd_name_is_read_all_the_same(socket_dir):
    program = socket_dir / "a) S 1 (b"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"]) as process:
        assert process_start_time(process.pid) >= process_start_time(os.getpid())
        process.kill()


def test_a_zombie_is_not_alive():
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_start_time(process.pid) is None
