"""The dashboard in a real terminal (a pseudo-terminal), as ``overlaptop demo`` opens it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Traces
from .terminals import START_LIMIT_S, Terminal

SMALL = ["--matrix", "32", "--products", "2", "--size-mb", "0.1", "--data-ms", "50"]
STEPS = b"1 collective"
"""Of allreduce_matmul's overview, once there are some."""
LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"


@pytest.fixture
def dashboard(traces: Traces) -> Iterator[Terminal]:
    """``overlaptop demo``, with the first steps on the screen."""
    terminal = Terminal("demo", "allreduce_matmul", "--nproc", "1", "--", *SMALL)
    try:
        terminal.read_until(STEPS)
        yield terminal
    finally:
        terminal.close()


def test_leaving_the_dashboard_of_a_demo_ends_its_job(dashboard: Terminal, traces: Traces) -> None:
    dashboard.type("\x03")
    dashboard.read_to_end()
    assert dashboard.process.wait(START_LIMIT_S) == 0
    assert LEAVE_ALTERNATE_SCREEN in dashboard.seen
    assert traces.alive() == []


def assert_ended_by(terminal: Terminal, signum: signal.Signals, traces: Traces) -> None:
    terminal.process.send_signal(signum)
    terminal.read_to_end()
    assert terminal.process.wait(START_LIMIT_S) == 128 + signum
    assert LEAVE_ALTERNATE_SCREEN in terminal.seen
    assert b"Traceback" not in terminal.seen
    assert traces.alive() == []


def test_a_demo_that_a_signal_ends_gives_the_terminal_back_and_leaves_no_process(
    dashboard: Terminal, traces: Traces
) -> None:
    assert_ended_by(dashboard, signal.SIGHUP, traces)


def test_a_dashboard_that_a_signal_ends_gives_the_terminal_back(traces: Traces) -> None:
    terminal = Terminal()
    try:
        terminal.read_until(b"allreduce_matmul")
        assert_ended_by(terminal, signal.SIGTERM, traces)
    finally:
        terminal.close()


def test_a_dashboard_whose_terminal_goes_away_ends(traces: Traces) -> None:
    terminal = Terminal()
    try:
        terminal.read_until(b"allreduce_matmul")
        terminal.hang_up()
        assert terminal.process.wait(START_LIMIT_S) == 128 + signal.SIGHUP
    finally:
        terminal.close()
    assert traces.alive() == []


def test_a_job_that_fails_is_explained_after_the_dashboard_was_left(traces: Traces) -> None:
    too_much = str(10**8)
    terminal = Terminal("demo", "allreduce_matmul", "--nproc", "1", "--", "--matrix", too_much)
    try:
        terminal.read_until(b"RuntimeError:")
        terminal.type("\x03")
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 1
        assert b"the job failed (exit status 1)" in terminal.seen
    finally:
        terminal.close()
    assert traces.alive() == []


def test_without_a_job_a_workload_can_be_chosen_and_ends_with_the_dashboard(traces: Traces) -> None:
    terminal = Terminal()
    try:
        terminal.read_until(b"allreduce_matmul")
        terminal.type("\r")
        terminal.read_until(b"optimizer")  # for whose end it waits, and later a phase of a step
        terminal.type("qy")
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 0
        assert LEAVE_ALTERNATE_SCREEN in terminal.seen
    finally:
        terminal.close()
    assert traces.alive() == []


@pytest.mark.parametrize("words", [["--theme", "nonsense"], ["demo", "--theme", "nonsense"]])
def test_a_theme_that_there_is_not_is_a_usage_error(words: list[str]) -> None:
    terminal = Terminal(*words)
    try:
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 2
        assert b"no theme 'nonsense'; there are: " in terminal.seen
    finally:
        terminal.close()


@pytest.mark.parametrize("words", [[], ["demo"]])
def test_a_dashboard_whose_drawing_would_go_to_a_file_says_so_where_it_is_seen(
    words: list[str], tmp_path: Path
) -> None:
    with (tmp_path / "stderr").open("wb") as file:
        terminal = Terminal(*words, stderr=file)
    try:
        terminal.read_to_end()
        assert terminal.process.wait(START_LIMIT_S) == 2
        assert b"draws on stderr" in terminal.seen
        assert terminal.seen.count(b"\n") == 1
    finally:
        terminal.close()
