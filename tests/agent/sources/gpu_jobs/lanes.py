"""Steps of known content on a GPU: products, copies on a side stream, graphs.

    lanes.py copies|graph

Each prints how long a product and a copy take, in ms by CUDA events before the agent's first step.
"""

import json
import sys
import time

import torch

import overlaptop.agent

SECONDS = 3.0


def timed_ms(work, times: int = 20) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    until_s = time.monotonic() + 0.5  # a GPU that works hard runs slower after a moment
    while time.monotonic() < until_s:
        for _ in range(20):
            work()
        torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def main() -> None:
    torch.cuda.set_device(0)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    host = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty_like(host, device="cuda")
    side = torch.cuda.Stream()
    out = torch.empty_like(matrix)

    def product() -> None:
        torch.mm(matrix, matrix, out=out)

    def copy() -> None:
        on_device.copy_(host, non_blocking=True)

    def copies() -> None:
        """A copy beside products, and one behind them."""
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy()
        for _ in range(8):
            product()
        torch.cuda.current_stream().wait_stream(side)
        copy()

    told = {"product_ms": timed_ms(product), "copy_ms": timed_ms(copy)}
    step = copies
    if sys.argv[1] == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                product()
        step = graph.replay
    print(json.dumps(told), flush=True)
    until_s = time.monotonic() + SECONDS
    while time.monotonic() < until_s:
        for _ in range(5):
            overlaptop.agent.step()
            step()
        torch.cuda.synchronize()  # else the host would be minutes ahead of the GPU
    overlaptop.agent.step()


if __name__ == "__main__":
    main()
