"""Steps of known content on one or two GPUs: products, copies on a side stream and between GPUs, graphs.

    lanes.py copies|graph|peer|idle

Each prints how much of what it did in a step, in ms by CUDA events taken before the agent's first step.
"""

import json
import sys
import time
from collections.abc import Callable

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


def timed_with_gaps_ms(work, gap_s: float, times: int = 100) -> float:
    """The same where the GPU rests after each: it clocks higher then."""
    marks = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        marks.append((begin, end))
        time.sleep(gap_s)
    return sum(begin.elapsed_time(end) for begin, end in marks[times // 2 :]) / (times - times // 2)


def main() -> None:
    kind = sys.argv[1]
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

    told = {"product_ms": timed_ms(product), "copy_ms": timed_ms(copy)}
    step: Callable[[], object] = product
    if kind == "copies":  # a copy after the products, and one beside them

        def step() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                copy()
            for _ in range(8):
                product()
            torch.cuda.current_stream().wait_stream(side)
            copy()

    elif kind == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                product()
        step = graph.replay
    elif kind == "peer":
        there = torch.empty(256 << 20, dtype=torch.uint8, device="cuda:1")
        here = torch.empty_like(there, device="cuda:0")

        def peer() -> None:
            here.copy_(there, non_blocking=True)

        told["peer_ms"] = timed_ms(peer)

        def step() -> None:
            peer()
            product()

    elif kind == "idle":  # the CPU cannot keep the GPU busy
        gap_s = told["product_ms"] / 1e3
        told["product_ms"] = timed_with_gaps_ms(product, gap_s)

        def step() -> None:
            product()
            torch.cuda.synchronize()
            time.sleep(gap_s)

    print(json.dumps(told), flush=True)
    until_s = time.monotonic() + SECONDS
    while time.monotonic() < until_s:
        for _ in range(5):
            overlaptop.agent.step()
            step()
        torch.cuda.synchronize()  # else the host would be minutes ahead of the GPU
    torch.cuda.synchronize()
    overlaptop.agent.step()


if __name__ == "__main__":
    main()
