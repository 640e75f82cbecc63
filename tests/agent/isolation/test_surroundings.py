"""Whatever happens to hubs, descriptors and children, the job goes on and is measured again."""

import pytest

from overlaptop.wire.messages import RankEnd

# The job itself makes the mischief, on rank 0 and at known steps: generators, each of which is resumed 20
# steps later. What is printed is compared with a job that has neither mischief nor agent.
JOB = """
import glob, hashlib, json, os, resource, signal, time
import torch, torch.distributed as dist
import overlaptop.agent

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
weight = torch.randn(16, 16, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.01)

def train(steps):
    for _ in range(steps):
        loss = (weight @ torch.randn(16, 16)).square().mean()
        loss.backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
        time.sleep(0.02)

def hub_pid():
    records = [json.load(open(path)) for path in glob.glob(os.environ["OVERLAPTOP_DIR"] + "/*/job.json")]
    return records[0]["hub_pid"] if records else None

def until(holds, seconds=90):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)

def dashboard_sees(holds):
    from overlaptop.jobs.hub_socket import LocalHubConnection
    from overlaptop.jobs.record import list_jobs
    from overlaptop.wire.messages import StepTotals
    jobs, steps = [], []
    until(lambda: jobs.extend(list_jobs()) or jobs)
    link = LocalHubConnection(jobs[0])

    def seen():
        steps.extend(m for m in link.poll() if isinstance(m, StepTotals))
        return {step.rank for step in steps} == {0, 1} and holds(steps)

    until(seen)
    link.close()

def mischief():
MISCHIEF

doing = mischief() if rank == 0 else iter(())
losses = []
for loss in train(50):
    losses.append(loss)
    if len(losses) % 20 == 10:
        next(doing, None)
dist.barrier()
print(hashlib.sha256(repr(losses).encode()).hexdigest())
dist.destroy_process_group()
"""

MISCHIEF = """
    # No descriptors, and no hub.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    until(hub_pid)
    os.kill(hub_pid(), signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    dashboard_sees(any)

    # Stopped until the socket and the queue before it are full, and beyond. A step of an optimizer
    # without gradients is a step to the agent and nothing to the job.
    until(hub_pid)
    stopped = hub_pid()
    os.kill(stopped, signal.SIGSTOP)
    sender = overlaptop.agent._agent._sender
    before = sender.dropped
    overlaptop.agent.reporting.sender.MAX_QUEUED_BYTES = 1 << 16  # full in a second

    def full():
        for _ in range(100):
            optimizer.step()
        return sender.dropped > before

    until(full)
    yield
    os.kill(stopped, signal.SIGCONT)
    dashboard_sees(lambda steps: any(step.rank == 0 and step.dropped > before for step in steps))

"""

# In a job of its own: libzmq, with which dashboards look, is not there before.
FORKS = """
    own = torch.Generator()  # the global one is the training's
    loader = torch.utils.data.DataLoader(torch.arange(64.0), batch_size=8, num_workers=2, generator=own)
    assert sum(batch.sum().item() for batch in loader) == torch.arange(64.0).sum().item()
    pid = os.fork()
    if pid == 0:
        weight.grad = torch.ones(16, 16)
        optimizer.step()
        import atexit
        atexit._run_exitfuncs()
        os._exit(0)  # gloo's threads are not there in the child; its destructors would wait for them
    assert os.waitpid(pid, 0)[1] == 0
    yield
    dashboard_sees(any)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mischief", [FORKS, MISCHIEF], ids=["forks", "hubs and descriptors"])
def test_the_job_does_not_notice(run_ranks, mischief):
    plain = run_ranks(JOB.replace("MISCHIEF", "    yield"), agent=False, forked=True)
    job = run_ranks(JOB.replace("MISCHIEF", mischief), listen=False, forked=True)
    assert plain.codes == job.codes == [0, 0], (plain.errs, job.errs)
    assert job.outs == plain.outs
    assert [len(out) for out in plain.outs] == [65, 65]
    assert not any("Traceback" in err for err in job.errs), job.errs


def test_job_may_close_all_descriptors(run_ranks, tmp_path):
    """The numbers are taken by the job's own files at once; nothing of the agent's may land in them."""
    job = run_ranks(
        """
        import os, sys, time
        import torch
        import overlaptop.agent
        path = sys.argv[1]
        weight = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for step in range(60):
            if step in (20, 40):
                os.closerange(3, 256)
                files = [os.open(f"{path}/{step}-{n}", os.O_CREAT | os.O_RDWR) for n in range(32)]
            weight.sum().backward()
            optimizer.step()
            time.sleep(0.02)
        print(sum(os.stat(f"{path}/{step}-{n}").st_size for step in (20, 40) for n in range(32)))
        """,
        nproc=1,
        forked=True,
        arguments=(str(tmp_path),),
    )
    assert (job.codes, job.outs, job.errs) == ([0], ["0\n"], [""])
    # The line was lost twice and found again: the last steps are there.
    assert job.steps()[-1].step == 58


# Rank 0 ends while its all-reduce still waits for rank 1: gloo's thread then finishes it when Python has
# begun to end.
UNFINISHED = """
    import time
    import torch, torch.distributed as dist
    import overlaptop.agent

    dist.init_process_group("gloo")
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    overlaptop.agent.step()
    if dist.get_rank() == 1:
        time.sleep(0.5)
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 0:
        raise ValueError("the job's own")
"""


def test_job_may_end_with_a_collective_under_way(run_ranks):
    job = run_ranks(UNFINISHED, forked=(1,))  # of rank 0 alone it matters how Python ends
    assert job.codes == [1, 0], job.errs
    assert job.logged == []


SPAWNS = """
    import os, time
    import torch, torch.distributed as dist
    import torch.multiprocessing as mp

    def rank_main(rank, world):
        import overlaptop.agent
        overlaptop.agent.attach()
        dist.init_process_group("gloo", rank=rank, world_size=world)
        for step in range(5):
            overlaptop.agent.step()
            dist.all_reduce(torch.ones(8))
            time.sleep(0.05)
        dist.destroy_process_group()

    if __name__ == "__main__":
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            os.environ.pop(name, None)
        mp.spawn(rank_main, (2,), nprocs=2)
"""


def test_attach_serves_spawned_ranks_that_no_launcher_numbered(run_ranks):
    job = run_ranks(SPAWNS, nproc=1, agent=False, forked=True)
    assert job.codes == [0], job.errs
    assert [len(job.steps(rank)) for rank in (0, 1)] == [4, 4]
    assert [(end.clean, end.failure) for rank in (0, 1) for end in job.of(RankEnd, rank)] == [
        (True, "")
    ] * 2
    assert (job.info(1).world_size, job.info(0).backend) == (2, "gloo")
