"""A job may fork at any moment; what is forked in the middle of a call of NVML's could never make one."""

import subprocess
import sys
from pathlib import Path

import pytest

# A thread is in a call of the driver's, which comes back when the fork has begun (what was registered last
# runs first), or never. The child tells whether it was born inside of the call, and makes a call itself.
JOB = """
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
    tests = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", JOB, tests, driver], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout.split(), done.returncode) == (printed.split(), 0), done.stderr
