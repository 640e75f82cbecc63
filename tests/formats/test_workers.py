"""Work in forked processes: in order, and nobody left behind."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from overlaptop.formats.workers import WorkerDiedError, spread


def children():
    """Pids of the processes that this one has started and not buried."""
    return {
        int(pid)
        for thread in Path("/proc/self/task").iterdir()
        for pid in (thread / "children").read_text().split()
    }


@pytest.mark.parametrize("count", [1, 2, 3, 99])
def test_answers_come_in_order_whoever_gave_them(count):
    answers = list(spread(lambda item: b"x" * item * 100_000, 7, count))
    assert list(map(len, answers)) == [item * 100_000 for item in range(7)]


def test_no_process_is_left_when_the_rest_is_not_wanted():
    before = children()
    # The pipe is full long before the second answer: the workers stand in the middle of writing.
    with closing(spread(lambda _: bytes(10_000_000), 8, 4)) as answers:
        next(answers)
    assert children() == before


def test_a_worker_that_is_killed_is_noticed():
    before = children()

    def work(item):
        if item == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"fine"

    answers = spread(work, 4, 2)
    assert [next(answers), next(answers)] == [b"fine", b"fine"]
    with pytest.raises(WorkerDiedError):
        next(answers)
    assert children() == before
