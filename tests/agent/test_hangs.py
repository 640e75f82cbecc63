"""A job that hangs says in which collective, for which rank, and where that stands; then all is well."""

import os
import signal

from overlaptop.fleet.hang_cause import Blame
from overlaptop.fleet.trouble import Kind, trouble_of
from overlaptop.report import troubles

TRAINING = """
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist

    import overlaptop.agent
    import overlaptop.agent.hang_watch

    overlaptop.agent.hang_watch.HUNG_AFTER_S = 1.0
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stop, model = torch.zeros(1), torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def is_there(name):
        found = torch.tensor([float(Path(name).exists())])
        dist.all_reduce(found)
        return bool(found)

    def wait_for_end_of(name):
        while Path(name).exists():
            time.sleep(0.01)

    while not is_there("stop"):
        model(torch.randn(4, 256)).square().mean().backward()
        if is_there("sleep") and rank == 1:
            wait_for_end_of("sleep")
        if is_there("leave_out"):
            if rank == 1:
                wait_for_end_of("leave_out")
            dist.all_reduce(torch.ones(1 << 18))
        if is_there("other"):
            dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(1 << 18))
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    dist.destroy_process_group()
"""


def hang(snapshot):
    found = trouble_of(snapshot)
    return found.hang if found is not None and found.kind in (Kind.HUNG, Kind.WAITING) else None


def until_hung(watching, blame, ranks, waiting):
    """The hang, once this is known of it: not all ranks tell where they stand at once."""

    def found(snapshot):
        told = hang(snapshot)
        return told if told and (told.blame, told.ranks, told.waiting) == (blame, ranks, waiting) else None

    return watching.until(found)


def is_well(snapshot):
    return trouble_of(snapshot) is None and all(view.stalled is None for view in snapshot.ranks)


def stop_and_go_on(watching, stopped, ranks):
    """Have a rank stopped until it is blamed, and all well again; returns the hang."""
    pid = watching.until_it_trains(ranks=ranks).ranks[stopped].info.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        waiting = tuple(rank for rank in range(ranks) if rank != stopped)
        found = until_hung(watching, Blame.NOT_ENTERED, (stopped,), waiting)
    finally:
        os.kill(pid, signal.SIGCONT)
    watching.until(is_well)
    watching.goes_on()
    return found


def stand_in_python(job, watching, name, size_bytes, waiting=(0,)):
    """Have rank 1 stand in Python until it is blamed and named, and all well again."""
    (job.folder / name).touch()
    found = until_hung(watching, Blame.NOT_ENTERED, (1,), waiting)
    assert found.at.startswith("train.py:")
    assert found.at.endswith(" wait_for_end_of")
    assert found.bytes == size_bytes
    starts = f"waiting for rank 1 {troubles.place(found.at)} since "
    watching.until(
        lambda snapshot: (told := trouble_of(snapshot)) and troubles.in_full(told).startswith(starts)
    )
    watching.until(lambda snapshot: any("wait_for_end_of" in each.text for each in snapshot.notices))
    (job.folder / name).unlink()
    watching.until(is_well)
    watching.goes_on()


def call_another_operation(job, watching, waiting=(0,)):
    (job.folder / "other").touch()
    return until_hung(watching, Blame.DIFFERS, (1,), waiting)


def test_rank_that_stops_sleeps_or_calls_otherwise_is_named(start, watch):
    job, watching = start(training=TRAINING, ranks=3), watch()
    assert stop_and_go_on(watching, stopped=2, ranks=3).op == "allreduce_"
    stand_in_python(job, watching, "sleep", 4, waiting=(0, 2))
    stand_in_python(job, watching, "leave_out", 1 << 20, waiting=(0, 2))
    found = call_another_operation(job, watching, waiting=(0, 2))
    assert (found.op, found.other) == ("allreduce_", "barrier")
