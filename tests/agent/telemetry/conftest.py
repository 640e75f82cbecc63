"""NVML with a driver of the test's own below it."""

from collections.abc import Callable

import pytest

from overlaptop.agent.telemetry.nvml import Nvml

from .driver import Driver, install


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[Driver], Nvml]:
    def open_on(driver: Driver) -> Nvml:
        install(driver, monkeypatch)
        return Nvml.open()

    return open_on
