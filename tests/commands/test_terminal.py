"""The dashboard in a real terminal (a pseudo-terminal), and what the terminal keeps of a job afterwards."""

import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlaptop.commands.dashboard import last_words
from overlaptop.jobs.processes import is_alive
from overlaptop.jobs.record import list_jobs
from overlaptop.runs.run_log import RunLog
from tests.fleet.builders import status, unmeasured, welcome
from tests.fleet.fakes import FakeSession
from tests.processes import eventually
from tests.tui import waits

from .running import SMALL_MATMUL, START_LIMIT_S, STEPS, Terminal


def test_dashboard_continued_after_a_stop_draws_and_quits(traces):
    with Terminal() as terminal:
        terminal.read_until(b"workloads")
        for stop in (signal.SIGTSTP, signal.SIGCONT):
            terminal.process.send_signal(stop)
            if stop is signal.SIGTSTP:
                eventually(lambda: stopped(terminal.process.pid))
            terminal.seen = b""
            terminal.process.send_signal(signal.SIGCONT)
            terminal.read_until(b"workloads")
        terminal.type("q")
        assert terminal.wait() == 0
        assert b"Traceback" not in terminal.seen
    assert traces.alive() == []


def stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def test_job_that_failed_is_explained_after_the_dashboard(traces):
    with Terminal("demo", "allreduce_matmul", "--nproc", "1", "--", "--matrix", str(10**8)) as terminal:
        terminal.read_until(b"exit status 1")
        terminal.type("\x03")
        assert terminal.wait() == 1
        assert b"the job failed (exit status 1)" in terminal.seen
    assert traces.alive() == []


@pytest.mark.parametrize(
    ("words", "said"), [(["demo"], b"draws on stderr"), (["relay", "--stdio"], b"not for a terminal")]
)
def test_what_needs_another_terminal_or_none_says_so(tmp_path, words, said):
    with (tmp_path / "stderr").open("w+b") as file, Terminal(*words, stderr=file) as terminal:
        assert terminal.wait() == 2
        file.seek(0)
        assert said in file.read()
        assert terminal.seen.count(b"\n") == (words == ["demo"])  # there it is told where it is seen


@pytest.mark.timeout(300)
def test_dashboard_turns_to_another_workload_and_ends_both(traces):
    with Terminal("demo", "allreduce_matmul", "--nproc", "1", "--", *SMALL_MATMUL) as terminal:
        terminal.read_until(STEPS)
        (first,) = list_jobs()
        terminal.type("w")
        terminal.read_until(b"--size-mb")
        terminal.type(" --prod")
        terminal.type("\r")
        terminal.read_until(b"expected")
        assert is_alive(first.hub_pid, first.hub_start_ticks)  # a typo ends nothing
        # Ctrl-U clears the options that are there; y ends the job that runs.
        terminal.type(f"\x15{' '.join(SMALL_MATMUL)} --size-mb 0.2\ry")
        eventually(lambda: (jobs := list_jobs()) and first not in jobs, START_LIMIT_S)
        terminal.seen = b""
        terminal.read_until(STEPS)
        terminal.type("w")
        terminal.read_until(b"ended here")
        (second,) = eventually(lambda: (jobs := list_jobs()) and jobs[0].rank_pids and jobs, START_LIMIT_S)
        assert not is_alive(first.hub_pid, first.hub_start_ticks)
        arguments = Path(f"/proc/{second.rank_pids[0]}/cmdline").read_text().split("\0")
        assert arguments[-3:-1] == ["--size-mb", "0.2"]
        assert b"Traceback" not in terminal.seen
        terminal.close_window()
        assert terminal.wait() == 128 + signal.SIGHUP
    assert traces.alive() == []


def test_last_words_are_the_report_of_what_the_dashboard_saw():
    for ends in (False, True):
        words = last_words(RunLog(), waits.waiting_job().tick(), ends=ends)
        assert words.startswith(f"train.py, 4 ranks on gpu-a: 8 steps, {'ran' if ends else 'runs'} for ")
        assert "rank 2 late in" in words
    assert not last_words(RunLog(), FakeSession(welcome(), status()).tick())


def test_last_words_tell_what_held_before_a_change():
    session, log = waits.waiting_job(late=lambda _number: None), RunLog()
    log.take(session.tick())
    for number in range(waits.STEPS, waits.STEPS + 40):
        session.clock.pass_s(0.5)
        waits.say_step(session, number, late=2)
        log.take(session.tick())
    last = waits.STEPS + 40
    for number in range(last, last + 7):
        session.clock.pass_s(0.5)
        session.say(*(replace(unmeasured(rank, number), transitional=number == last) for rank in range(4)))
        log.take(session.tick())
    words = last_words(log, session.tick()).splitlines()
    late = words[words.index("late ranks") + 1]
    assert late.startswith("  rank 2 late in ")
    assert late.endswith(f"; gone after step {last}")
    assert words[words.index("findings") + 1].endswith(f"; gone after step {last}")
