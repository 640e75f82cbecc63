"""Ctrl-C ends each command with status 130 and without a traceback."""

import os
import signal
import subprocess

import pytest

from .running import OVERLAPTOP, START_LIMIT_S, Terminal, overlaptop

INITIALIZE = (
    '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-03-26", '
    '"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}\n'
)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--once --wait", b"waiting: "),
        ("--json --wait", b"waiting: "),
        ("record --wait", b"waiting: "),
        ("exporter --port 0", b"/metrics"),
        ("", b"workloads"),
    ],
)
def test_ctrl_c_ends_a_command_that_waits(words, shown):
    with Terminal(*words.split()) as terminal:
        terminal.read_until(shown)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
        assert b"Traceback" not in terminal.seen


def test_ctrl_c_ends_the_server_for_ai_agents():
    pytest.importorskip("mcp")
    pipe = subprocess.PIPE
    with subprocess.Popen([*OVERLAPTOP, "mcp"], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as server:
        server.stdin.write(INITIALIZE)
        server.stdin.flush()
        assert "serverInfo" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.wait(START_LIMIT_S) == 130
        assert server.stderr.read() == ""


def test_ctrl_c_waits_for_the_end_of_an_import(tmp_path):
    (tmp_path / "shtab.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('imported', flush=True)\n"
        "FILE, complete = None, lambda *_, **__: ''\n"
    )
    done = overlaptop("completion", "bash", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout.strip(), done.stderr) == (130, "imported", "")
