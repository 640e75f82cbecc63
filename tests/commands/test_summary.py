"""What the terminal keeps of a job when the dashboard is left."""

from msgspec.structs import replace

from overlaptop.commands.dashboard import last_words
from overlaptop.runs.run_log import RunLog
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import status, unmeasured, welcome
from tests.fleet.fakes import FakeSession
from tests.tui.waits import STEPS, say_step, waiting_job


def test_last_words_are_the_report_of_what_the_dashboard_saw():
    job, step, *_ = last_words(RunLog(), waiting_job().tick()).splitlines()
    assert job.startswith("train.py, 4 ranks on gpu-a: 8 steps, runs for ")
    assert step.startswith("  step        median 80.0 ms, p99 80.0 ms")
    assert "rank 2 late in" in last_words(RunLog(), waiting_job().tick())
    assert "8 steps, ran for " in last_words(RunLog(), waiting_job().tick(), ends=True)


def test_nothing_is_said_of_a_job_without_steps():
    assert not last_words(RunLog(), FakeSession(welcome(), status()).tick())


def test_last_words_tell_what_held_before_a_change():
    session, log = waiting_job(late=lambda _number: None), RunLog()
    log.take(session.tick())
    for number in range(STEPS, STEPS + 40):
        session.clock.pass_s(0.5)
        say_step(session, number, late=2)
        log.take(session.tick())
    last = STEPS + 40
    session.say(*(replace(unmeasured(rank, last), transitional=True) for rank in range(4)))
    for number in range(last + 1, last + 7):
        session.clock.pass_s(0.5)
        session.say(*(unmeasured(rank, number) for rank in range(4)))
        log.take(session.tick())
    words = last_words(log, session.tick()).splitlines()
    late = words[words.index("late ranks") + 1]
    assert late.startswith("  rank 2 late in ")
    assert late.endswith(f"; gone after step {last}")
    assert words[words.index("findings") + 1].endswith(f"; gone after step {last}")


def test_last_words_tell_a_hang_before_the_end():
    session, log = waiting_job(), RunLog()
    for _ in range(30):
        session.clock.pass_s(1)
        session.say(status())
        log.take(session.tick())
    session.say(*(RankEnd(rank, session.clock(), clean=False, exit_code=-9) for rank in range(4)))
    words = last_words(log, session.tick())
    troubles = words.splitlines()
    troubles = troubles[troubles.index("troubles") + 1 :]
    assert "no step has ended since" in troubles[0]
    assert "killed by SIGKILL" in troubles[1]
