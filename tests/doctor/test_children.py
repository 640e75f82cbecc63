"""Processes with an end, whatever they do."""

from __future__ import annotations

import os
import sys
import time

import pytest

from overlaptop.doctor.children import MAX_OUTPUT_BYTES, Child, Completed
from tests.processes import runs

TIMEOUT_S = 60.0


@pytest.mark.parametrize(
    ("script", "ran"),
    [
        ("echo out; echo err >&2; exit 3", Completed(3, "out\n", "err\n")),
        (
            "cat; ps -o sid= -p $$ | grep -qw $$ && echo its own session",
            Completed(0, "its own session\n", ""),
        ),
        ("echo $COLOUR", Completed(0, "red\n", "")),
        ("head -c 200000 /dev/zero | tr '\\0' x", Completed(0, "x" * 200_000, "")),
    ],
    ids=["outputs", "no input", "environment", "more than a pipe holds"],
)
def test_what_it_did_by_its_end_comes_back(script: str, ran: Completed) -> None:
    environ = {"PATH": os.environ["PATH"], "COLOUR": "red"}
    assert Child(["sh", "-c", script], environ).wait(TIMEOUT_S) == ran


def test_one_that_hangs_is_ended_with_what_it_has_started() -> None:
    began_s = time.monotonic()
    # It ignores what can be ignored, and has a child.
    script = "trap '' TERM INT HUP; sleep 1000 & echo $! $$; wait; wait"
    ran = Child(["sh", "-c", script]).wait(0.5)
    assert ran.status is None
    assert time.monotonic() - began_s < TIMEOUT_S
    for pid in map(int, ran.output.split()):
        deadline_s = time.monotonic() + TIMEOUT_S
        while runs(pid):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_one_that_ended_in_time_is_received_though_it_is_asked_late() -> None:
    # Another host's checks were waited for first, to the end of the patience with both.
    child = Child(["sh", "-c", "echo out; exit 3"])
    os.waitid(os.P_PID, child._process.pid, os.WEXITED | os.WNOWAIT)
    assert child.wait(0.0) == Completed(3, "out\n", "")


def test_one_that_leaves_its_outputs_to_another_is_over_all_the_same() -> None:
    # As ssh does, where the first of its lines stays as the others' connection.
    in_its_session = "until [ $(ps -o sid= -p $!) = $! ]; do sleep 0.01; done"
    ran = Child(["sh", "-c", f"setsid sleep 1000 & {in_its_session}; echo $!"]).wait(TIMEOUT_S)
    assert ran.status == 0
    assert runs(int(ran.output))
    os.kill(int(ran.output), 9)


def test_one_that_writes_without_end_is_ended() -> None:
    ran = Child([sys.executable, "-c", "while True: print('x' * 65536)"]).wait(TIMEOUT_S)
    assert (ran.status, len(ran.output)) == (None, MAX_OUTPUT_BYTES)


def test_one_that_is_given_up_ends() -> None:
    child = Child(["sh", "-c", "exec sleep 1000"])
    pid = child._process.pid
    assert runs(pid)
    child.close()
    child.close()
    assert not runs(pid)
