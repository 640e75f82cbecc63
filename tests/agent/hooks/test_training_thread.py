"""What the training thread spent its steps on."""

import gc
import threading
import time

import pytest
from torch.utils.data import DataLoader, Dataset

from overlaptop.agent.hooks import training_thread
from overlaptop.agent.hooks.training_thread import TrainingThread
from overlaptop.agent.isolation.fault_barrier import FaultBarrier

MS = 1_000_000
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


@pytest.fixture
def tasks(monkeypatch, tmp_path):
    """The kernel's files of this thread and of one that runs backward passes."""
    monkeypatch.setattr(training_thread, "TASKS", tmp_path)
    own, backward = tmp_path / str(threading.get_native_id()), tmp_path / "7"
    for folder, name in ((own, "python"), (backward, "pt_autograd_0")):
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "schedstat").write_text("1 0 1\n")
    return own, backward


def test_a_backward_pass_that_waits_for_a_cpu_counts_as_well(thread, tasks):
    """On a GPU the launches of a backward pass come from a thread of torch's own."""
    thread.boundary(0)
    thread.sample()
    thread.boundary(1)
    time.sleep(0.05)
    for folder, waited_ns in zip(tasks, (10 * MS, 30 * MS), strict=True):
        (folder / "schedstat").write_text(f"1 {waited_ns} 1\n")
    thread.boundary(2)
    thread.sample()
    assert thread.take(0).delayed_ns is None  # it began before the first sample
    assert thread.take(1).delayed_ns == pytest.approx(40 * MS, rel=0.2)


@pytest.mark.parametrize(("state", "is_asleep"), [("S", True), ("D", True), ("R", False)])
def test_thread_is_asleep_by_the_kernels_state(thread, tasks, state, is_asleep):
    thread.boundary(0)
    (tasks[0] / "stat").write_text(f"12 (a) b) {state} 1 12\n")
    assert thread.is_asleep() == is_asleep
