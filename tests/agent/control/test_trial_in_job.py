"""Trials in a job of two ranks: they end by themselves, and cost the job nothing but time."""

import os
import signal

from overlaptop.jobs.record import list_jobs
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob

BUCKET_CAP_MB = Knob("bucket_cap_mb", None, "", "", 1, 10_000)
ACCUMULATION = Knob("accumulation", 3, "3", "3", 1, 8)
STEPS = 12
DELAY_NS = 60_000_000


def used(job, rank):
    return (job.folder / f"accumulation{rank}").read_text().split()


def test_trial_ends_by_itself_whoever_dies(start, watch):
    job = start()
    dashboard = watch()
    dashboard.until_it_trains()
    begun = dashboard.outcome(
        dashboard.send(commands.make_trial(ACCUMULATION, 1, STEPS)), ["trying", "tried"]
    )
    dashboard.session.close()
    os.kill(list_jobs()[0].hub_pid, signal.SIGKILL)
    late = watch()
    late.until_it_trains(begun.step + 2 * STEPS)
    assert late.knob("accumulation", "3").value == 3
    for rank in (0, 1):
        # The first iteration ends before step 0 begins.
        around = used(job, rank)[begun.step - 4 : begun.step + STEPS + 6]
        assert around == ["3"] * 5 + ["1"] * STEPS + ["3"] * 5
    assert late.end(job) == 0, job.log()


def test_commands_and_a_fault_cost_the_losses_no_bit(start, watch, losses_alone):
    job = start()
    dashboard = watch()
    dashboard.until_it_trains(5)
    tried = dashboard.outcome(dashboard.send(commands.make_trial(BUCKET_CAP_MB, 1, STEPS)))
    assert (tried.state, tried.old, tried.new) == ("tried", "25", "1"), tried
    assert tried.value == 1
    delayed = dashboard.outcome(
        dashboard.send(commands.make_delay(1, DELAY_NS, commands.HOST, STEPS)), ["tried"]
    )
    assert int(delayed.new) >= DELAY_NS
    dashboard.goes_on()
    for rank in (0, 1):
        steps = dashboard.steps_of(rank)
        for trial, settles in ((tried, 2), (delayed, 0)):
            switches = [*range(trial.step, trial.step + settles)]
            switches += range(trial.step + STEPS, trial.step + STEPS + settles)
            around = range(trial.step - 3, trial.step + STEPS + 5)
            assert [step for step in around if steps[step].trial] == [
                *range(trial.step, trial.step + STEPS + settles)
            ]
            assert [step for step in around if steps[step].transitional] == switches
        # A bucket for each of its layers, and the job's own.
        assert steps[tried.step + 2].collectives == 4
        assert steps[tried.step + STEPS + 2].collectives == steps[tried.step - 1].collectives
        assert all(steps[step].step_ns > DELAY_NS for step in range(delayed.step, delayed.step + STEPS))
    assert not any(notice.level == "warning" for notice in dashboard.look().notices)
    assert dashboard.outcome(dashboard.ask(steps=5)).state == "written"
    assert dashboard.set(BUCKET_CAP_MB, 2).state == "changed"
    key = dashboard.send(commands.make_setting(BUCKET_CAP_MB, 1))
    dashboard.outcome(key, ["agreed", "changing", "changed"])
    (job.folder / "fault").touch()
    done = dashboard.outcome(key)  # all had agreed: it changes with the others
    assert [rank.text for rank in done.ranks] == [f"bucket_cap_mb 2 → 1 at step {done.step}"] * 2
    dashboard.until(lambda snapshot: snapshot.ranks[1].info.agent_disabled)
    last = dashboard.look().ranks[0].last.step
    dashboard.until(lambda snapshot: snapshot.ranks[0].last.step > last + 10)
    assert dashboard.end(job) == 0, job.log()
    assert job.losses() == losses_alone(job)
