"""Telemetry beside real jobs: what arrives with it, and that all else is as it is without it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from overlaptop.agent.telemetry.telemetry import NO_GPU
from overlaptop.wire.devices import DeviceFacts, DeviceSample, MachineFacts, NumaFacts
from overlaptop.wire.messages import RankEnd, StepTotals
from tests.agent.conftest import COUNTS_MESSAGES

TESTS = str(Path(__file__).resolve().parents[1])
JOB = f"""
    import json, sys, time
    {{before}}
    {COUNTS_MESSAGES}
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    wanted = dict(word.split("=") for word in sys.argv[1:])
    more = torch.ones(1)
    while more.item():
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        time.sleep(0.02)
        more[0] = len(losses) < 40 or any(sent[kind] < int(number) for kind, number in wanted.items())
        dist.all_reduce(more, dist.ReduceOp.MAX)
    dist.destroy_process_group()
    print(json.dumps([losses[:20], torch.cuda.is_initialized()]))
"""

# Names what is imported on other threads than the job's.
SEES_IMPORTS = """
    import importlib.abc, threading

    class ImportsSeen(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if threading.current_thread() is not threading.main_thread():
                print(name, flush=True)

    import torch
    sys.meta_path.insert(0, ImportsSeen())
"""


def test_telemetry_on_a_cpu_leaves_the_job_as_without_it(run_ranks) -> None:
    """And no thread of the agent's imports anything: a child that a job forks meanwhile would find half a
    module, and its import's lock held for ever.
    """
    script = JOB.format(before=SEES_IMPORTS)
    facts = ("MachineFacts=1", "DeviceFacts=1", "NumaFacts=1")
    job = run_ranks(script, arguments=facts, options=("--every", "1"))
    assert job.codes == [0, 0], job.errs
    for rank in range(2):
        (machine,), (device,) = job.of(MachineFacts, rank), job.of(DeviceFacts, rank)
        assert machine.host == job.info(rank).host
        assert {unknown.reason for unknown in device.unknown} == {NO_GPU}
        assert job.of(NumaFacts, rank)[-1].state in ("no gpu", "one node")
        assert job.of(DeviceSample, rank) == []
        assert len(job.of(StepTotals, rank)) > 10
        assert [end.clean for end in job.of(RankEnd, rank)] == [True]
        assert job.notices(rank) == []
        assert sum(step.measured for step in job.steps(rank)) > 5
        assert len(job.outs[rank].splitlines()) == 1, job.outs[rank]
        assert json.loads(job.outs[rank])[1] is False, "CUDA was initialised"

    plain = run_ranks(script, options=("--no-telemetry",), forked=True)
    assert plain.codes == [0, 0], plain.errs
    assert json.loads(plain.outs[0])[0] == json.loads(job.outs[0])[0]
    assert not {type(message) for message in plain.messages} & {MachineFacts, DeviceFacts, NumaFacts}


# A thread is in a call of the driver's, which comes back when the fork has begun (what was registered last
# runs first), or never. The child tells whether it was born inside of the call, and makes a call itself.
CALLS = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from telemetry import machines
from overlaptop.agent.telemetry import nvml as module
from overlaptop.agent.telemetry.nvml import Nvml

driver = sys.modules["pynvml"] = machines.h200_pair()
nvml = Nvml.open()
nvml.gpus()
begun, free, inside = threading.Event(), threading.Event(), []

def power(gpu):
    inside.append(True)
    begun.set()
    free.wait()
    inside.clear()

driver.nvmlDeviceGetPowerUsage = power
call = ("nvmlDeviceGetPowerUsage", nvml.handle(machines.uuid(1)))
threading.Thread(target=nvml.call, args=call, daemon=True).start()
begun.wait()
if sys.argv[2] == "comes back":
    module.FORK_WAITS_S = 30.0
    os.register_at_fork(before=free.set)
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        os._exit(10 * bool(inside) + nvml.call("nvmlDeviceGetCount"))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(nvml.call("nvmlDeviceGetCount") if sys.argv[2] == "comes back" else "")
"""


@pytest.mark.parametrize(("driver", "printed"), [("comes back", "2 2 2"), ("hangs", "12 12")])
def test_a_fork_waits_for_a_call_under_way_but_not_for_ever(driver: str, printed: str) -> None:
    words = [sys.executable, "-c", CALLS, TESTS, driver]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout.split(), done.returncode) == (printed.split(), 0), done.stderr
