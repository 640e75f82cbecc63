"""The question before a workload starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from overlaptop.launch.request import LaunchRequest
from overlaptop.tui.draw.prompt import Confirm
from overlaptop.tui.screen import DashboardScreen


async def ask_to_start(
    screen: DashboardScreen, request: LaunchRequest, start: Callable[[LaunchRequest], Awaitable[None]]
) -> None:
    """Start a workload; ask first where that ends the one that was started here before."""

    async def go() -> None:
        screen.run_worker(partial(start, request), group="start", exclusive=True)

    if running := screen.dashboard.running:
        await screen.ask(Confirm(f"end {running} and start {request.label}?", go))
    else:
        await go()
