"""The job gives the same numbers with the agent as without it, whatever befalls the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

DDP = Path(__file__).resolve().parents[2] / "workloads" / "ddp.py"
SMALL = ("--layers", "2", "--width", "64", "--batch", "2", "--seq", "32")


def test_fifty_steps_of_ddp_lose_no_bit(run_ranks, tmp_path: Path) -> None:
    losses = []
    for agent in (False, True):
        path = tmp_path / f"losses-{agent}"
        job = run_ranks(DDP, agent=agent, arguments=(*SMALL, "--steps", "50", "--losses", str(path)))
        assert path.exists(), job.errs
        losses.append(path.read_text())
    assert losses[1] == losses[0]
    assert len(losses[0].splitlines()) == 50
    assert len(job.steps(rank=0)) == len(job.steps(rank=1)) == 49
    assert all(step.overlap is not None for step in job.steps())


# Each fault in a child of one process that has imported torch already. The child trains, once with the
# fault in place and the agent attached, once plainly, and compares what it got.
FAULTS = """
    import io, logging, os, sys, threading
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import overlaptop.agent
    import overlaptop.agent.agent, overlaptop.agent.collectives, overlaptop.agent.reporter
    import overlaptop.agent.sender, overlaptop.agent.sources.host, overlaptop.agent.steps
    import overlaptop.agent.waits

    def train(group_up):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)]))
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for step in range(12):
            loss = model(torch.randn(8, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(torch.ones(4), async_op=True).wait()
            threading.Event().wait(0.03)
            losses.append(loss.item())
        return losses

    def child(place, name):
        log = io.StringIO()
        logging.basicConfig(stream=log)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        plain = train(dist)
        owner = overlaptop.agent
        for part in place.split("."):
            owner = getattr(owner, part)
        def fault(*args, **kwargs):
            raise ArithmeticError("on purpose")
        setattr(owner, name, fault)
        overlaptop.agent.attach()
        same = train(dist) == plain
        overlaptop.agent.step()
        said = log.getvalue().count("agent stepped aside: ArithmeticError")
        dist.destroy_process_group()
        print(place, name, "same" if same else "DIFFERENT", "said", said, flush=True)

    for fault in sys.argv[1:]:
        pid = os.fork()
        if pid == 0:
            child(*fault.rsplit(".", 1))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, fault
"""

HOOKS_AND_THREADS = [
    "sources.host.HostSource.boundary",
    "sources.host.HostSource.edge",
    "sources.host.HostSource.issue",
    "sources.host.HostSource.issued",
    "sources.host.HostSource.wait_begin",
    "sources.host.HostSource.wait_end",
    "sources.host.HostSource.take",
    "sources.host.HostSource.start",
    "agent.Agent._choose_source",
    "agent.Agent._info",
    "collectives._Describe.__call__",
    "collectives._work_of",
    "collectives._queue_callback",
    "collectives._c10d_ops",
    "reporter.totals",
    "sender.Sender.put",
    "sender.Sender.pump",
    "steps._enclosing_steps",
    "steps.StepHooks._patch_backward",
    "steps.StepHooks._consider_boundary",
    "waits.WaitHooks.install",
]


def test_a_fault_in_any_hook_or_thread_is_said_once_and_changes_nothing(run_ranks) -> None:
    job = run_ranks(FAULTS, nproc=1, agent=False, arguments=tuple(HOOKS_AND_THREADS))
    assert job.codes == [0], job.errs
    lines = job.outs[0].splitlines()
    for line, fault in zip(lines, HOOKS_AND_THREADS, strict=True):
        place, name = fault.rsplit(".", 1)
        # Steps are not nested here, so that one fault never strikes.
        times = 0 if name == "_enclosing_steps" else 1
        assert line == f"{place} {name} same said {times}"
    for notice in job.notices():
        assert notice.level == "error"


@pytest.mark.parametrize("name", ["issue", "take"])
def test_a_fault_reaches_the_dashboard_once(run_ranks, name: str) -> None:
    job = run_ranks(
        f"""
        import time
        import torch, torch.distributed as dist
        import overlaptop.agent
        from overlaptop.agent.sources.host import HostSource

        def fault(*args):
            raise ArithmeticError("on purpose")

        HostSource.{name} = fault
        dist.init_process_group("gloo")
        for step in range(10):
            overlaptop.agent.step()
            dist.all_reduce(torch.ones(4))
            time.sleep(0.1)
        dist.destroy_process_group()
        """,
        nproc=1,
    )
    assert job.codes == [0], job.errs
    assert [notice.text for notice in job.notices()] == [job.notices()[0].text]
    assert "ArithmeticError" in job.notices()[0].text
    assert job.errs[0].count("stepped aside") == 1
    assert job.info().source == "none"
    assert job.info().source_reason == "the agent stepped aside"
