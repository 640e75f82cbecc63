"""What all tests of the dashboard share."""

import asyncio

import pytest
from textual._context import active_app
from textual.pilot import wait_for_idle

from overlaptop.tui import app

DRAWS_WITHIN_S = 0.02
MOST_PASSES = 5_000
THREAD_LOOKS, THREAD_LOOK_S = 250, 0.002
NEVER_S = 1e6


@pytest.fixture(autouse=True)
def with_colors(monkeypatch):
    """Whatever the machine's environment asks for."""
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture(autouse=True)
def only_what_a_test_asks_for(monkeypatch):
    """No dashboard reads or draws by itself: else that falls between any two keys, as the machine has it.

    And a key is done when the loop has nothing left to do. Textual's pilot waits until the process has
    slept for 20 ms: most of the time of these tests, and wrong where the machine stands still for so long.
    """
    for name in ("TICK_S", "IDLE_TICK_S"):
        monkeypatch.setattr(app, name, NEVER_S)
    monkeypatch.setattr(app, "MAX_REFRESH_HZ", 1 / NEVER_S)
    for module in ("pilot", "app"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", until_nothing_is_due)


async def until_nothing_is_due(*_: float) -> None:
    """Until the loop has nothing to run, now or within the time in which Textual draws.

    A thread that it has asked is waited for, unless the test holds that up. An app that is quitting has
    always something to do: there Textual's own wait is the right one.
    """
    loop = asyncio.get_running_loop()
    calm = looks = 0
    for _ in range(MOST_PASSES):
        await asyncio.sleep(0)
        if getattr(active_app.get(None), "_exit", False):
            await wait_for_idle(0)
            return
        due_s = min(
            (timer.when() for timer in loop._scheduled if not timer.cancelled()), default=float("inf")
        )
        left_s = due_s - loop.time()
        if loop._ready:
            calm = 0
        elif left_s < DRAWS_WITHIN_S:
            calm = 0
            await asyncio.sleep(max(0.0, left_s))
        elif looks < THREAD_LOOKS and is_busy(loop._default_executor):
            calm, looks = 0, looks + 1
            await asyncio.sleep(THREAD_LOOK_S)
        elif (calm := calm + 1) == 3:
            return


def is_busy(executor) -> bool:
    """Whether there is something that it has not answered."""
    return executor is not None and (
        executor._work_queue.qsize() > 0 or executor._idle_semaphore._value < len(executor._threads)
    )
