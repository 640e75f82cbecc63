"""What the training thread spent its steps on."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from overlaptop.agent.hooks.training_thread import TrainingThread
from overlaptop.agent.isolation.fault_barrier import FaultBarrier

MS = 1_000_000
PR_SET_NAME = 15
LOADING_S = 0.03


class Slow(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, at):
        time.sleep(LOADING_S)
        return at


@pytest.fixture
def thread():
    """The hook stays in for the life of the process, so each test silences its own at the end."""
    faults = []
    barrier = FaultBarrier(lambda level, text: faults.append(text))
    made = TrainingThread(barrier)
    made.install()
    gc.disable()  # a collection of Python's own would count, too
    yield made
    gc.enable()
    barrier.active = False
    assert faults == []


def test_loading_computing_and_full_collections_are_told_apart(thread):
    thread.boundary(0)
    assert list(DataLoader(Slow(), batch_size=None)) == [0, 1, 2]
    thread.boundary(1)
    until_ns = time.thread_time_ns() + 20 * MS
    while time.thread_time_ns() < until_ns:
        pass
    thread.boundary(2)
    gc.collect()
    gc.collect(0)
    thread.boundary(3)
    loading, computing, collecting = (thread.take(step) for step in range(3))
    assert loading.loading_ns >= 3 * LOADING_S * 1e9
    assert loading.cpu_ns < loading.loading_ns
    assert computing.cpu_ns >= 20 * MS
    assert computing.loading_ns == collecting.loading_ns == 0
    assert (loading.full_collections, collecting.full_collections) == (0, 1)


def test_a_backward_pass_that_waits_for_a_cpu_counts_as_well(thread):
    """On a GPU the launches of a backward pass come from a thread of torch's own."""
    allowed = os.sched_getaffinity(0)
    ended = threading.Event()

    def backward():
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_autograd_0", 0, 0, 0)
        os.sched_setaffinity(0, {min(allowed)})  # this thread's alone
        named.append(threading.get_native_id())
        while not ended.is_set():
            pass

    named = []
    other = threading.Thread(target=backward)
    command = f"import os; os.sched_setaffinity(0, {{{min(allowed)}}})\nwhile True: pass"
    rival = subprocess.Popen([sys.executable, "-c", command])
    other.start()

    def waited():
        return int(Path(f"/proc/self/task/{named[0]}/schedstat").read_text().split()[1])

    try:
        while not named:
            time.sleep(0.01)
        thread.boundary(0)
        thread.sample()
        thread.boundary(1)
        before = waited()
        while waited() < before + 200 * MS:
            time.sleep(0.02)  # the training thread needs no CPU
        thread.boundary(2)
        thread.sample()
    finally:
        ended.set()
        other.join()
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, allowed)
    assert thread.take(0).delayed_ns is None  # it began before the first sample
    assert thread.take(1).delayed_ns >= 200 * MS


@pytest.mark.parametrize("is_asleep", [True, False])
def test_thread_is_asleep_in_a_lock_but_not_waiting_for_the_gil(thread, is_asleep):
    there, ended = threading.Event(), threading.Event()

    def train():
        thread.boundary(0)
        there.set()
        while not ended.is_set():
            if is_asleep:
                ended.wait(60)

    other = threading.Thread(target=train)
    other.start()
    there.wait(60)
    try:
        while is_asleep and not thread.is_asleep():
            time.sleep(0.001)  # it is on its way
        looks = [thread.is_asleep() for _ in range(50)]
    finally:
        ended.set()
        other.join()
    assert all(looks) if is_asleep else sum(looks) <= 5
