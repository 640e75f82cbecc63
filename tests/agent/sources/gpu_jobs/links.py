"""Known bytes across NVLink and PCIe, one stretch of time after another, on two GPUs of one process.

Prints one line of JSON: for each stretch its begin and end (Unix time in ns, the copies' own) and the bytes
that crossed, as GPU 0 receives and sends them. Between two intervals it waits until nothing is under way.
"""

import json
import time
from collections.abc import Callable

import torch

import overlaptop.agent

BYTES = 256 << 20
AT_A_TIME = 8
SECONDS = 5.0
PAUSE_S = 1.2  # Two samples of the half second that no stretch reaches into


def stretch(copy: Callable[[], object]) -> dict[str, int]:
    """Copy again and again, always some copies ahead, and tell how often in which time."""
    copy()
    synchronize()
    begin_ns = time.time_ns()
    until_s = time.monotonic() + SECONDS
    copies = 0
    marks: list[torch.cuda.Event] = []
    while time.monotonic() < until_s:
        for _ in range(AT_A_TIME):
            copy()
        copies += AT_A_TIME
        marks.append(torch.cuda.Event())
        marks[-1].record()
        if len(marks) > 2:
            marks.pop(0).synchronize()
        overlaptop.agent.step()
    synchronize()
    told = {"begin_ns": begin_ns, "end_ns": time.time_ns(), "bytes": copies * BYTES}
    time.sleep(PAUSE_S)
    return told


def synchronize() -> None:
    for device in range(2):
        torch.cuda.synchronize(device)


def main() -> None:
    torch.cuda.set_device(0)
    here = torch.empty(BYTES, dtype=torch.uint8, device="cuda:0")
    there = torch.empty(BYTES, dtype=torch.uint8, device="cuda:1")
    host = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
    overlaptop.agent.step()  # telemetry begins here
    time.sleep(PAUSE_S)
    told = {
        "nvlink_tx": stretch(lambda: there.copy_(here, non_blocking=True)),
        "nvlink_rx": stretch(lambda: here.copy_(there, non_blocking=True)),
        "pcie_rx": stretch(lambda: here.copy_(host, non_blocking=True)),
        "pcie_tx": stretch(lambda: host.copy_(here, non_blocking=True)),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
