"""On real jobs, one of whose ranks comes late by a known time: it is named, and the wait is known."""

from __future__ import annotations

from statistics import mean, median

from overlaptop.findings.evidence import evidence_of
from overlaptop.findings.find import find
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.window import FIRST_STEPS
from tests.fleet.builders import MS, welcome

JOB = """
import sys, time
import torch, torch.distributed as dist
import overlaptop.agent

late, late_ms, step_ms, steps = map(int, sys.argv[1:])
dist.init_process_group("gloo")
gradients = [torch.ones(1 << 20) for _ in range(3)]
dist.all_reduce(gradients[0])
for step in range(steps):
    time.sleep((step_ms + late_ms * (dist.get_rank() == late)) / 1e3)
    came_ns = []
    for gradient in gradients:
        came_ns.append(time.time_ns())
        dist.all_reduce(gradient)
    print(*came_ns, flush=True)
    overlaptop.agent.step()
dist.destroy_process_group()
"""


def split(job, ranks, number):
    """The steps of a job that were split, and the last Snapshot in which something was."""
    fleet = JobState()
    fleet.apply(welcome(world_size=ranks))
    steps, last = [], None
    for message in job.messages:
        fleet.apply(message)
        snapshot = fleet.snapshot()
        steps += snapshot.fresh_waits
        last = snapshot if snapshot.fresh_waits else last
    assert len(steps) > number / 3
    return steps, last


def arrivals(job):
    """When each rank came to each collective of each step, by the job's own record, from the agent's first
    step on.
    """
    return [[list(map(int, line.split())) for line in out.splitlines()[1:]] for out in job.outs]


def caused(came_ns, step):
    """What the others waited for each rank in a step, by the job's own record."""
    waited_ns = [0] * len(came_ns)
    for at in zip(*(of[step] for of in came_ns), strict=True):
        waited_ns[at.index(max(at))] += sum(max(at) - each for each in at)
    return waited_ns


def came_so_late(came_ns, waits, late, late_ns):
    """Whether the rank did so by the job's own record. A machine that stalls may swallow its sleep, or make
    another rank late.
    """
    caused_ns = [caused(came_ns, each.step) for each in waits if each.step >= FIRST_STEPS]
    least_ns = late_ns / 2 * (len(came_ns) - 1)
    always = all(of[late] > max(least_ns, 0.7 * sum(of)) for of in caused_ns)
    return always and mean(map(sum, caused_ns)) < 3 * least_ns


def were_late(came_ns, waits, named):
    """Whether these ranks together often were by the job's own record: a busy machine can make a healthy
    rank late in earnest.
    """
    caused_ns = [caused(came_ns, each.step) for each in waits]
    mostly = [2 * sum(of[rank] for rank in named) >= sum(of) for of in caused_ns]
    lasts = [
        at.index(max(at)) for each in waits for at in zip(*(of[each.step] for of in came_ns), strict=True)
    ]
    return sum(mostly) >= 0.4 * len(mostly) or sum(rank in named for rank in lasts) >= 0.4 * len(lasts)


def test_a_rank_that_comes_late_is_named_and_the_others_wait_for_it_so_long(run_ranks):
    ranks, late, late_ms, step_ms, steps = 4, 2, 150, 300, 20
    job = run_ranks(
        JOB, nproc=ranks, arguments=tuple(map(str, (late, late_ms, step_ms, steps))), forked=True
    )
    assert job.codes == [0] * ranks, job.errs
    waits, last = split(job, ranks, steps)
    came_ns = arrivals(job)
    if came_so_late(came_ns, waits, late, late_ms * MS):
        assert [each.rank for each in last.wait_window.late] == [late]
        evidence = evidence_of(last)
        [found] = [each for each in find(evidence) if each.rule == "late_launch"]
        assert found.ranks == (late,)
        assert 0.5 * late_ms * MS < found.gain_ns <= evidence.most_wait_ns
    named = {each.rank for each in last.wait_window.late}
    assert not named or were_late(came_ns, waits, named)
    for rank in set(range(ranks)) - {late}:
        waited_ns = [
            (wait_ns, max(of[each.step][0] for of in came_ns) - came_ns[rank][each.step][0])
            for each in waits
            if (wait_ns := each.collectives[0].wait_ns(rank))
        ]
        error_ns = abs(median(wait_ns - came_later_ns for wait_ns, came_later_ns in waited_ns))
        # A busy machine may take a rank's core between its record and the call.
        assert error_ns < max(0.05 * median(later for _, later in waited_ns), 5 * MS), waited_ns
    for view in last.ranks:
        parts = view.waits
        assert parts.wait_ns + parts.transfer_ns + parts.not_attributed_ns == view.measured.comm_ns
