"""Whatever happens to hubs, dashboards, descriptors and children, the job goes on and is measured again."""

from __future__ import annotations

import pytest

# The job itself makes the mischief, at a known step, and checks its own losses against those of a run
# before the agent came.
JOB = """
    import glob, json, os, resource, signal, subprocess, sys, time
    import torch, torch.distributed as dist
    import overlaptop.agent

    rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
    dist.init_process_group("gloo")

    def train(steps, at, mischief):
        torch.manual_seed(0)
        weight = torch.randn(16, 16, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.01)
        losses = []
        for step in range(steps):
            if step == at:
                mischief()
            loss = (weight @ torch.randn(16, 16)).square().mean()
            loss.backward()
            dist.all_reduce(weight.grad)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            time.sleep(0.02)
        return losses

    def hub_pid():
        paths = glob.glob(os.environ["OVERLAPTOP_DIR"] + "/*/job.json")
        records = [json.load(open(path)) for path in paths]
        return records[0]["hub_pid"] if records else None

    def until(holds, seconds=30):
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)

    def mischief():
        if rank == 0:
{mischief}

    plain = train(30, 10, lambda: None)
    same = train(30, 10, mischief) == plain
    if rank == 0:
{after}
    dist.barrier()
    print("same" if same else "DIFFERENT")
    dist.destroy_process_group()
"""

SHOW = """
from overlaptop.wire import endpoints, links
from overlaptop.wire.messages import StepTotals
until(endpoints.list_jobs)
line = links.LocalLink(endpoints.list_jobs()[0])
steps = []
def both_seen():
    global steps
    steps += [m for m in line.poll() if isinstance(m, StepTotals)]
    return {m.rank for m in steps} == {0, 1}
until(both_seen)
line.close()
"""

KILLED = (
    """
until(lambda: hub_pid())
old = hub_pid()
os.kill(old, signal.SIGKILL)
""",
    "until(lambda: hub_pid() not in (None, old))\n" + SHOW,
)

STOPPED = (
    """
until(lambda: hub_pid())
stopped = hub_pid()
os.kill(stopped, signal.SIGSTOP)
""",
    "os.kill(stopped, signal.SIGCONT)\n" + SHOW,
)

OUT_OF_DESCRIPTORS = (
    """
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
until(lambda: hub_pid())
os.kill(hub_pid(), signal.SIGKILL)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
""",
    "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n" + SHOW,
)

DASHBOARDS = (
    """
until(lambda: hub_pid())
dashboards = [
    subprocess.Popen([sys.executable, "-m", "overlaptop", "--json"], stdout=subprocess.PIPE)
    for _ in range(20)
]
for dashboard in dashboards[:10]:
    dashboard.kill()
for dashboard in dashboards[10:15]:
    dashboard.send_signal(signal.SIGSTOP)
""",
    "for dashboard in dashboards:\n    dashboard.kill()\n    dashboard.wait()\n" + SHOW,
)

FORKED = (
    """
dataset = torch.arange(64.0)
own = torch.Generator()  # the global one is the training's
loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, generator=own)
assert sum(batch.sum().item() for batch in loader) == dataset.sum().item()
pid = os.fork()
if pid == 0:
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    torch.optim.SGD([weight], 0.1).step()
    import atexit
    atexit._run_exitfuncs()
    os._exit(0)  # gloo's threads are not there in the child, and its destructors would wait for them
assert os.waitpid(pid, 0)[1] == 0
""",
    SHOW,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [KILLED, STOPPED, OUT_OF_DESCRIPTORS, DASHBOARDS, FORKED],
    ids=["hub killed", "hub stopped", "no descriptors", "twenty dashboards", "forks"],
)
def test_the_job_does_not_notice(run_ranks, case: tuple[str, str]) -> None:
    mischief, after = case
    script = JOB.format(
        mischief="\n".join(
            f"            {line}" for line in f"global_names = True\n{mischief}".splitlines()
        ),
        after="\n".join(f"        {line}" for line in after.splitlines()),
    )
    # What the mischief leaves for later is in its own scope otherwise.
    script = script.replace(
        "            global_names = True", "            global old, stopped, limits, dashboards"
    )
    job = run_ranks(script, listen=False)
    assert job.codes == [0, 0], job.errs
    assert job.outs == ["same\n", "same\n"]
    assert not any("Traceback" in err for err in job.errs), job.errs


def test_closing_all_descriptors_costs_the_job_nothing_of_its_own(run_ranks, tmp_path) -> None:
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
        arguments=(str(tmp_path),),
    )
    assert job.codes == [0], job.errs
    assert job.outs == ["0\n"]
    # The line was lost twice and found again: the last steps are there.
    assert job.steps()[-1].step == 58
    assert job.errs == [""]


def test_a_job_ends_with_the_agents_goodbye(run_ranks) -> None:
    from overlaptop.wire.messages import RankEnd

    job = run_ranks("import torch, overlaptop.agent\nfor _ in range(3): overlaptop.agent.step()\n", nproc=1)
    assert job.codes == [0], job.errs
    assert [step.step for step in job.steps()] == [0, 1]
    assert isinstance(job.messages[-1], RankEnd)
    assert job.messages[-1].clean


def test_attach_serves_spawned_ranks_that_no_launcher_numbered(run_ranks) -> None:
    job = run_ranks(
        """
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
        """,
        nproc=1,
        agent=False,
    )
    assert job.codes == [0], job.errs
    assert [len(job.steps(rank)) for rank in (0, 1)] == [4, 4]
    assert job.info(1).world_size == 2
    assert job.info(0).backend == "gloo"


def test_an_unsafe_socket_directory_is_said_once_and_the_job_goes_on(run_ranks, sockets) -> None:
    sockets.mkdir(mode=0o755)
    sockets.chmod(0o755)
    job = run_ranks(
        """
        import time
        import torch, overlaptop.agent
        for _ in range(8):
            overlaptop.agent.step()
            time.sleep(0.1)
        print("done")
        """,
        nproc=1,
        listen=False,
    )
    assert job.codes == [0]
    assert job.outs == ["done\n"]
    assert job.errs[0].count("overlaptop:") == 1
    assert "0700" in job.errs[0]
