"""The thread: what reaches the hub, when, and that no fault of it reaches anything else."""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent import placement
from overlaptop.agent.isolation.fault_barrier import flush_log
from overlaptop.agent.telemetry import telemetry as module
from overlaptop.agent.telemetry.telemetry import (
    PERIOD_S,
    JobGpu,
    MachineMonitor,
    Telemetry,
    until_next_s,
)
from overlaptop.wire.devices import DeviceFacts, DeviceSample, MachineFacts, NumaFacts
from overlaptop.wire.schema import Message
from tests.processes import eventually

from . import machines
from .machines import NO_PERMISSION

WAIT_S = 30.0
PLACE = replace(placement.alone(), rank=7, host="gpu-a")
FIRST = JobGpu(machines.uuid(1), "0000:00:06.0", "NVIDIA H200")
SECOND = JobGpu(machines.uuid(2), "0000:00:07.0", "NVIDIA H200")


class Beside:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notices: list[tuple[str, str]] = []
        self.sent: list[Message] = []
        self.telemetry = Telemetry(lambda *notice: self.notices.append(notice), enabled=True)
        monkeypatch.setattr(module, "until_next_s", lambda now_s: 0.001)

    def put_state(self, message: Message) -> None:
        if message not in self.of(type(message))[-1:]:
            self.sent.append(message)

    def of(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]

    def follow(self, gpu: JobGpu | None, until: Callable[[], object]) -> None:
        self.telemetry.follow(lambda: gpu)
        self.serve_until(until)

    def serve_until(self, reached: Callable[[], object]) -> None:
        eventually(lambda: self.telemetry.serve(self.put_state, PLACE) or reached())

    def has(self, kind: type, count: int = 1) -> Callable[[], bool]:
        return lambda: len(self.of(kind)) >= count


@pytest.fixture
def beside(monkeypatch):
    made = Beside(monkeypatch)
    yield made
    made.telemetry.stop()


@pytest.fixture
def driver(monkeypatch):
    made = machines.h200_pair()
    made.between_samples_us = 500_000
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def running(beside: Beside) -> bool:
    thread = beside.telemetry._thread
    return thread is not None and thread.is_alive


@given(st.floats(1e9, 4e9))
def test_ranks_sample_at_the_same_moments(now_s: float) -> None:
    left_s = until_next_s(now_s)
    assert PERIOD_S / 4 < left_s <= PERIOD_S * 5 / 4
    assert abs((now_s + left_s + PERIOD_S / 2) % PERIOD_S - PERIOD_S / 2) < 1e-5


def test_facts_and_samples_reach_the_hub(beside, driver) -> None:
    beside.follow(FIRST, beside.has(DeviceSample, 4))
    (machine,), (device,) = beside.of(MachineFacts), beside.of(DeviceFacts)
    assert {message.rank for message in beside.sent} == {7}
    assert machine.host == "gpu-a"
    assert [gpu.uuid for gpu in machine.gpus] == [machines.uuid(1), machines.uuid(2)]
    assert (device.gpu_uuid, device.nvlink_count) == (machines.uuid(1), 18)
    assert len(beside.of(NumaFacts)) >= 1
    assert beside.of(DeviceSample)[-1].nvlink_tx_bytes_per_s == 100_000 << 20
    beside.telemetry.stop()
    assert not running(beside)
    assert (driver.opened, driver.samples) == (0, 0)
    assert beside.notices == []


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ("nvmlInit", "no permission"),
        ("nvmlDeviceGetHandleByIndex", "NVML does not show the job's GPU"),
        ("import", "the package nvidia-ml-py is missing"),
    ],
)
def test_without_nvml_the_kernel_is_still_asked(beside, driver, monkeypatch, refused, why) -> None:
    driver.refuse[refused] = NO_PERMISSION
    if refused == "import":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    beside.follow(FIRST, beside.has(NumaFacts))
    (device,) = beside.of(DeviceFacts)
    assert (device.gpu_uuid, device.gpu_name, device.pci_bus_id) == ("", "NVIDIA H200", "0000:00:06.0")
    assert all(unknown.reason.startswith(why) for unknown in device.unknown)
    assert beside.of(MachineFacts)[0].unknown[-1].name == "gpus"
    beside.telemetry.stop()
    assert (driver.opened, beside.notices) == (0, [])


def test_facts_are_sent_when_they_change_and_only_then(beside, driver, monkeypatch) -> None:
    monkeypatch.setattr(module, "FACTS_EVERY", 1)
    beside.follow(FIRST, beside.has(DeviceSample, 4))
    driver.gpus[0].pcie = (1, 5, 16, 16)
    beside.serve_until(beside.has(DeviceFacts, 2))
    beside.serve_until(beside.has(DeviceSample, len(beside.of(DeviceSample)) + 4))
    assert [facts.pcie_generation for facts in beside.of(DeviceFacts)] == [5, 1]
    allowed = os.sched_getaffinity(os.getpid())
    os.sched_setaffinity(os.getpid(), {max(allowed)})
    try:
        beside.serve_until(lambda: beside.of(NumaFacts)[-1].cpu_set == str(max(allowed)))
    finally:
        os.sched_setaffinity(os.getpid(), allowed)


def fault(*_: object) -> JobGpu:
    raise ArithmeticError("on purpose")


@pytest.mark.parametrize("where", ["naming the GPU", "on its thread", "sending"])
def test_a_fault_ends_telemetry_with_one_notice(beside, driver, monkeypatch, caplog, where: str) -> None:
    if where == "on its thread":
        monkeypatch.setattr(MachineMonitor, "sample", fault)
    if where == "sending":
        beside.put_state = fault
    beside.telemetry.follow(fault if where == "naming the GPU" else lambda: FIRST)
    beside.serve_until(lambda: beside.notices and not running(beside))
    for _ in range(3):
        beside.telemetry.serve(beside.put_state, PLACE)
        beside.telemetry.follow(lambda: SECOND)
    assert beside.notices == [("warning", "no telemetry: ArithmeticError: on purpose")]
    flush_log()  # as the job's next step does
    assert caplog.messages == ["overlaptop: no telemetry: ArithmeticError: on purpose"]


def test_the_end_does_not_wait_for_a_driver_that_hangs(beside, driver, monkeypatch) -> None:
    hangs, free = threading.Event(), threading.Event()

    def hang(*_) -> None:
        hangs.set()
        assert free.wait(WAIT_S)

    monkeypatch.setattr(driver, "nvmlDeviceGetPowerUsage", hang)
    beside.follow(FIRST, hangs.is_set)
    beside.telemetry.stop()  # the thread is still in the call
    assert running(beside)
    free.set()
    beside.telemetry._thread.join(WAIT_S)
    assert not running(beside)


def test_another_device_is_followed(beside, driver) -> None:
    beside.follow(FIRST, beside.has(DeviceFacts))
    beside.telemetry.follow(lambda: FIRST)
    beside.follow(SECOND, beside.has(DeviceFacts, 2))
    a_slice = JobGpu("MIG-0", "0000:00:06.0", "NVIDIA H200 MIG 1g.18gb")  # found by its GPU's address
    beside.follow(a_slice, beside.has(DeviceFacts, 3))
    followed = [facts.gpu_uuid for facts in beside.of(DeviceFacts)]
    assert followed == [machines.uuid(1), machines.uuid(2), machines.uuid(1)]
    beside.telemetry.stop()
    assert (driver.opened, driver.samples) == (0, 0)
