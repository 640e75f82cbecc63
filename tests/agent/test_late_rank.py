"""On real jobs, one of whose ranks comes late by a known time: it is named, and the wait is known."""

from __future__ import annotations

from statistics import mean, median

import pytest

from overlaptop.findings.evidence import evidence_of
from overlaptop.findings.find import find
from overlaptop.fleet.fleet import Fleet
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
    print(time.time_ns(), flush=True)
    for gradient in gradients:
        dist.all_reduce(gradient)
    overlaptop.agent.step()
dist.destroy_process_group()
"""


def split(job, ranks, number):
    """The steps of a job that were split, and the last Snapshot in which something was."""
    fleet = Fleet()
    fleet.apply(welcome(world_size=ranks))
    steps, last = [], None
    for message in job.messages:
        fleet.apply(message)
        snapshot = fleet.snapshot()
        steps += snapshot.fresh_waits
        last = snapshot if snapshot.fresh_waits else last
    assert len(steps) > number / 2
    return steps, last


def arrivals(job):
    """When each rank came in each step, by the job's own record, from the agent's first step on."""
    return [list(map(int, out.split()))[1:] for out in job.outs]


def came_so_late(came_ns, waits, late, late_ns):
    """Whether the rank did so by the job's own record. A machine that stalls may swallow its sleep, or make
    another rank late.
    """
    leads_ns, waited_ns = [], []
    for each in waits:
        own_ns, *others_ns = sorted((came[each.step] for came in came_ns), reverse=True)
        leads_ns.append(own_ns - others_ns[0] if own_ns == came_ns[late][each.step] else 0)
        waited_ns += [own_ns - ns for ns in others_ns]
    usual = sum(ns > late_ns / 2 for ns in leads_ns) >= 0.9 * len(leads_ns)
    return usual and mean(waited_ns) < 1.5 * late_ns


def was_late(came_ns, waits, rank):
    """Whether it often was by the job's own record."""
    lasts = [max(range(len(came_ns)), key=lambda each: came_ns[each][step.step]) for step in waits]
    return lasts.count(rank) >= 0.4 * len(lasts)


@pytest.mark.parametrize(
    ("ranks", "late", "late_ms", "step_ms", "steps"), [(2, 1, 150, 150, 26), (4, 2, 150, 300, 14)]
)
def test_a_rank_that_comes_late_is_named_and_the_others_wait_for_it_so_long(
    run_ranks, ranks, late, late_ms, step_ms, steps
):
    job = run_ranks(
        JOB, nproc=ranks, arguments=tuple(map(str, (late, late_ms, step_ms, steps))), forked=True
    )
    assert job.codes == [0] * ranks, job.errs
    waits, last = split(job, ranks, steps)
    came_ns = arrivals(job)
    if came_so_late(came_ns, waits, late, late_ms * MS):
        assert [each.rank for each in last.wait_window.late] == [late]
        [found] = [each for each in find(evidence_of(last)) if each.rule == "late_launch"]
        assert found.ranks == (late,)
        assert 0.5 * late_ms * MS < found.gain_ns <= last.wait_window.exposed_wait_ns
    assert all(was_late(came_ns, waits, named.rank) for named in last.wait_window.late)
    for rank in set(range(ranks)) - {late}:
        waited_ns = [
            (wait_ns, max(of[each.step] for of in came_ns) - came_ns[rank][each.step])
            for each in waits
            if (wait_ns := each.collectives[0].wait_ns(rank))
        ]
        error_ns = abs(median(wait_ns - came_later_ns for wait_ns, came_later_ns in waited_ns))
        # A busy machine may take a rank's core between its record and the call.
        assert error_ns < max(0.05 * median(later for _, later in waited_ns), 5 * MS), waited_ns
    for view in last.ranks:
        parts = view.waits
        assert parts.wait_ns + parts.transfer_ns + parts.unsplit_ns == view.measured.comm_ns


def test_a_healthy_job_names_nobody(run_ranks):
    ranks = 4
    job = run_ranks(JOB, nproc=ranks, arguments=("-1", "0", "300", "10"), forked=True)
    assert job.codes == [0] * ranks, job.errs
    waits, last = split(job, ranks, 10)
    came_ns = arrivals(job)
    # A busy machine can make one rank late in earnest: then the job's own record says so, too.
    assert all(was_late(came_ns, waits, named.rank) for named in last.wait_window.late)
