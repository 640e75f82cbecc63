"""The job gives the same numbers with the agent as without it, whatever befalls the agent."""

from overlaptop.wire.messages import AGENT_DISABLED

# Each fault in a child of one process that has imported torch already, and each child a rank of its own to
# the agent. The child trains plainly, then with the fault in place and the agent attached, and compares.
FAULTS = """
    import atexit, io, logging, os, pkgutil, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import overlaptop.agent, overlaptop.agent.agent, overlaptop.agent.reporting.reporter
    import overlaptop.agent.hooks.waits, overlaptop.agent.hooks.collectives, overlaptop.agent.sources.host

    def train(pause_s):
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
            time.sleep(pause_s)
            losses.append(loss.item())
        return losses

    def child(place, name):
        log = io.StringIO()
        logging.basicConfig(stream=log)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        plain = train(pause_s=0)
        def fault(*args, **kwargs):
            raise ArithmeticError("on purpose")
        setattr(pkgutil.resolve_name(f"overlaptop.agent.{place}"), name, fault)
        # Its group has one rank; to the hub it is the one that its environment names.
        overlaptop.agent.placement.in_process_group = lambda known, **_: known
        overlaptop.agent.attach(control=True)
        same = train(pause_s=0.03) == plain
        overlaptop.agent.step()
        atexit._run_exitfuncs()  # the agent's goodbye
        said = log.getvalue().count("agent disabled itself: ArithmeticError")
        print(place, name, "same" if same else "DIFFERENT", "said", said, flush=True)

    for rank, fault in enumerate(sys.argv[1:]):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.environ["RANK"] = str(rank)
                child(*fault.rsplit(".", 1))
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0, fault
"""

HOOKS_AND_THREADS = [
    "sources.host.HostSource.boundary",
    "sources.host.HostSource.issue",
    "sources.host.HostSource.wait_begin",
    "sources.host.HostSource.take",
    "measuring.Measuring._choose_source",
    "agent.Agent._introduce",
    "knobs.change_bucket_size.BucketKnob._note",
    "knobs.prefetch.PrefetchKnobs.install",
    "control.executor.CommandExecutor.serve",
    "hooks.collectives._Describe.__call__",
    "hooks.collectives._work_of",
    "hooks.collectives._c10d_ops",
    "reporting.reporter.totals",
    "reporting.sender.Sender.put",
    "reporting.sender.Sender.pump",
    "hooks.steps.StepHooks._patch_backward",
    "hooks.steps.StepHooks._consider_boundary",
    "hooks.waits.WaitHooks.install",
]


UNABLE_TO_TELL = ("agent.Agent._introduce", "reporting.sender.Sender.put", "reporting.sender.Sender.pump")
"""Without these there is no line to the dashboard: the log alone says it."""


def test_fault_in_any_hook_is_reported_once_and_changes_nothing(run_ranks) -> None:
    job = run_ranks(FAULTS, nproc=1, agent=False, forked=True, arguments=tuple(HOOKS_AND_THREADS))
    assert job.codes == [0], job.errs
    lines = job.outs[0].splitlines()
    assert lines == [f"{' '.join(fault.rsplit('.', 1))} same said 1" for fault in HOOKS_AND_THREADS]
    for rank, fault in enumerate(HOOKS_AND_THREADS):
        told = [(notice.level, "ArithmeticError" in notice.text) for notice in job.notices(rank)]
        assert told == [("error", True)] * (fault not in UNABLE_TO_TELL), fault
        if told:
            assert (job.info(rank).source, job.info(rank).source_reason) == ("none", AGENT_DISABLED), fault
