"""The supervisor, holding jobs that behave badly."""

import os
import signal
import subprocess
import sys

import pytest

from overlaptop.launch import supervisor
from tests.processes import PATIENCE_S, eventually

# What a job may do: a daemon in a session of its own, whose parent is gone, deaf to SIGTERM.
DAEMON = """
import os, signal, sys, time
reads, writes = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writes, b"ready")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(reads, 5)
"""
STEADY = "import time; print('ready', flush=True); time.sleep(600)"


def start(code, tmp_path):
    log = tmp_path / "log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-I", supervisor.__file__, "0.5", sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    return process, log


def ready(log):
    return eventually(lambda: "ready" in log.read_text())


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9)]
)
def test_exit_status_is_that_of_the_job_as_in_a_shell(tmp_path, code, status):
    process, _ = start(code, tmp_path)
    assert process.wait(PATIENCE_S) == status


def test_daemon_that_outlives_its_job_is_killed(tmp_path, traces):
    process, log = start(f"{DAEMON}\nprint('ready', flush=True)", tmp_path)
    assert process.wait(PATIENCE_S) == 0
    assert "ready" in log.read_text()
    assert traces.alive() == []


@pytest.mark.parametrize("deaf", [False, True], ids=["polite", "deaf to SIGTERM"])
def test_closing_the_connection_ends_the_job_and_its_daemons(tmp_path, traces, deaf):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else ""
    process, log = start(f"{DAEMON}\n{ignore}\n{STEADY}", tmp_path)
    assert ready(log)
    process.stdin.close()
    status = process.wait(30)
    assert status == 128 + (signal.SIGKILL if deaf else signal.SIGTERM)
    assert traces.alive() == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_supervisor_ends_the_job(tmp_path, traces, signum):
    process, log = start(STEADY, tmp_path)
    assert ready(log)
    process.send_signal(signum)
    process.wait(PATIENCE_S)
    # Where it is killed itself, torchrun gets SIGTERM.
    eventually(lambda: traces.alive() == [], PATIENCE_S if signum is signal.SIGKILL else 0.0)


def test_long_log_is_cut_to_its_end_and_grows_on(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LOG_LIMIT_BYTES", 1000)
    monkeypatch.setattr(supervisor, "LOG_KEPT_BYTES", 10)
    path = tmp_path / "log"
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(log, b"x" * 1000)
    supervisor.trim_log(log)
    assert path.stat().st_size == 1000, "within the limit nothing is cut"
    os.write(log, b"the latest")
    supervisor.trim_log(log)
    os.write(log, b" word")
    assert path.read_bytes() == b"the latest word"
    os.close(log)
