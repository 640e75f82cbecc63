"""Slows rank 1 in one way after the other, so that a job starts once for all of them.

Scripts call `in_dataset` for each sample, `in_forward` at the beginning of forward, and `end_step`. Of the
first steps rank 1 takes the usual length. Then each entry of ANSWERS_PLAN (``dataset:0.2 lock:0.5``) is on
for ANSWERS_ON_S and off for ANSWERS_OFF_S; it costs about that share of the step before it. Rank 1 appends
a line of JSON to ANSWERS_LOG whenever it switches. With ANSWERS_BOTH_MS both ranks sleep in
each step, too.
"""

import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

WARM_UP_STEPS, WARM_UP_S, USUAL_STEPS = 40, 20.0, 60  # Some jobs become faster for half a minute
ON_GPU = torch.cuda.is_available()
PRODUCT = 4096 if ON_GPU else 256  # Rows and columns of the matrices of `compute`
BURN = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # it ends with the rank
busy_s, idle_s = map(float, sys.argv[1:])
while True:
    until_s = time.perf_counter() + busy_s
    while time.perf_counter() < until_s:
        pass
    time.sleep(idle_s)
"""
Hook = Callable[..., object]


@contextmanager
def slow_dataset(cost_s: float, _: float) -> Iterator[Hook]:
    """Samples take long to read."""

    def in_dataset(batch: int) -> None:
        time.sleep(cost_s / batch)

    yield in_dataset


@contextmanager
def sleep(cost_s: float, _: float) -> Iterator[Hook]:
    """The training thread sleeps before it launches anything."""

    def in_forward() -> None:
        time.sleep(cost_s)

    yield in_forward


@contextmanager
def collect(cost_s: float, _: float) -> Iterator[Hook]:
    """A garbage collection in each step, with many objects about."""
    gc.freeze()  # collecting what torch has would take its own time
    gc.disable()
    count, took_s = 50_000, list[float]()
    for _round in range(3):
        heap: list[list[object]] = [[] for _ in range(count)]
        count = round(count * cost_s / _collection_s())
    gc.enable()

    def in_forward() -> None:
        took_s.append(_collection_s())
        if len(took_s) == 5:  # it takes longer where training has used the CPU's caches
            del heap[round(len(heap) * cost_s / median(took_s)) :]

    yield in_forward
    heap.clear()
    gc.unfreeze()
    gc.collect()  # or Python would soon do so by itself


def _collection_s() -> float:
    """Collect; returns the CPU time that it took."""
    began_s = time.thread_time()
    gc.collect()
    return time.thread_time() - began_s


@contextmanager
def compute(cost_s: float, _: float) -> Iterator[Hook]:
    """Matrix products besides those of the model."""
    device, dtype = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
    matrix = torch.randn(PRODUCT, PRODUCT, device=device, dtype=dtype)
    products = 5

    def in_forward() -> None:
        with torch.no_grad():
            for _ in range(products):
                matrix @ matrix

    for following in (50, 0):  # the first products are slower
        torch.cuda.synchronize() if ON_GPU else None
        began_s = time.perf_counter()
        in_forward()
        torch.cuda.synchronize() if ON_GPU else None
        products = following or max(1, round(cost_s * products / (time.perf_counter() - began_s)))
    yield in_forward


@contextmanager
def lock(cost_s: float, _: float) -> Iterator[Hook]:
    """Another thread holds a lock that the training thread needs in each step."""
    guard, ended = threading.Lock(), threading.Event()
    wanted, held = threading.Semaphore(0), threading.Semaphore(0)

    def hold() -> None:
        while wanted.acquire() and not ended.is_set():
            with guard:
                held.release()
                time.sleep(cost_s)

    def in_forward() -> None:
        wanted.release()
        held.acquire()
        with guard:
            pass

    threading.Thread(target=hold, daemon=True).start()
    yield in_forward
    ended.set()
    wanted.release()


@contextmanager
def busy_cpu(_: float, share: float) -> Iterator[Hook]:
    """Each rank is bound to a CPU of its own, and on this rank's another process computes: always, or a
    quarter of the time. What that costs depends on what the CPU does in a step.
    """
    lists = Path(f"/proc/{os.getppid()}/task").glob("*/children")
    others = {int(each) for ids in lists for each in ids.read_text().split()} - {os.getpid()}
    allowed = os.sched_getaffinity(0)
    gpus = re.findall(r"\d+", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    cpus = deque(sorted(allowed))
    cpus.rotate(-2 * int(gpus[0]) if gpus else 0)  # jobs on other GPUs take others
    for process, cpu in zip((os.getpid(), *others), cpus, strict=False):
        _bind(process, {cpu})
    busy_s, idle_s = (1.0, 0.0) if share >= 0.5 else (0.005, 0.015)
    # In this session: the kernel shares CPUs between sessions first.
    burner = subprocess.Popen([sys.executable, "-I", "-S", "-c", BURN, str(busy_s), str(idle_s)])
    yield nothing
    burner.kill()
    burner.wait()
    for process in (os.getpid(), *others):
        _bind(process, allowed)


def _bind(process: int, cpus: set[int]) -> None:
    with suppress(OSError):  # it ended since
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)


def nothing(*_: object) -> None:
    """Slow nothing down."""


FAULTS = {
    "dataset": (slow_dataset, "in_dataset"),
    "forward": (sleep, "in_forward"),
    "gc": (collect, "_collection_s"),
    "compute": (compute, "" if ON_GPU else "in_forward"),
    "lock": (lock, "in_forward"),
    "cpu": (busy_cpu, ""),
}
"""Each with the function where the training thread loses the time; empty: everywhere."""
_fault: Hook = nothing
BOTH_S = float(os.environ.get("ANSWERS_BOTH_MS", "0")) / 1e3


def _plan() -> Iterator[None]:
    """Switch faults between steps."""
    global _fault
    yield from _steps(WARM_UP_STEPS, WARM_UP_S)
    usual_s = yield from _steps(USUAL_STEPS)
    for name, _, share in (each.partition(":") for each in os.environ.get("ANSWERS_PLAN", "").split()):
        fault, function = FAULTS[name]
        at = function and f"{Path(__file__).name} {function}"
        said = {"fault": name, "share": float(share), "at": at}
        with fault(float(share) * usual_s, float(share)) as _fault:
            _log(**said, on=True, step_ms=1e3 * usual_s)
            step_s = yield from _steps(1, float(os.environ["ANSWERS_ON_S"]))
        _fault = nothing
        _log(**said, on=False, step_ms=1e3 * step_s)
        usual_s = yield from _steps(1, float(os.environ["ANSWERS_OFF_S"]))
    _log(fault="", on=False, step_ms=1e3 * usual_s)
    while True:
        yield


def _steps(steps: int, seconds: float = 0.0) -> Generator[None, None, float]:
    """Wait for these steps and seconds; return the length of a step, s."""
    ends_s = [time.perf_counter()]
    while len(ends_s) <= steps or ends_s[-1] - ends_s[0] < seconds:
        yield
        ends_s.append(time.perf_counter())
    return median(later - earlier for earlier, later in pairwise(ends_s))


def _log(**said: Any) -> None:
    if path := os.environ.get("ANSWERS_LOG"):
        with Path(path).open("a") as file:
            file.write(json.dumps({"at_ns": time.time_ns(), **said}) + "\n")


_switch = _plan()


def in_dataset(batch: int) -> None:
    """Call for each sample; ``batch``: how many a step reads."""
    if _fault.__name__ == "in_dataset":
        _fault(batch)


def in_forward() -> None:
    """Call before the model computes."""
    time.sleep(BOTH_S)
    if _fault.__name__ == "in_forward":
        _fault()


def end_step() -> None:
    """Call after each step."""
    if os.environ.get("RANK") == "1":
        next(_switch)
