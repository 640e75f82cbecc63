"""``overlaptop relay``: how it is called, and workloads that are started through it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlaptop.commands import relay
from overlaptop.commands.relay import StageOrders
from overlaptop.launch import launcher as launching
from overlaptop.launch.local import LocalLauncher
from overlaptop.relay.handover import Door
from overlaptop.wire.relaying import RelayLaunch, RelayLaunchStatus

from .conftest import Traces, wait_until
from .test_stage import stage_in


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overlaptop", "relay", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_without_stdio_it_is_a_usage_error() -> None:
    result = run()
    assert (result.returncode, result.stdout) == (2, "")
    assert "required: --stdio" in result.stderr


def test_its_help_says_what_it_is_and_the_short_help_does_not_name_it() -> None:
    assert "The far end of `overlaptop HOST`" in run("--help").stdout
    short = subprocess.check_output([sys.executable, "-m", "overlaptop", "--help"], text=True)
    assert "relay" not in short


def test_it_is_not_for_a_terminal() -> None:
    near, far = pty.openpty()
    try:
        result = run("--stdio", stdin=far)
    finally:
        os.close(near)
        os.close(far)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "not for a terminal" in result.stderr


@pytest.fixture
def stage(tmp_path: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLauncher]:
    monkeypatch.setattr(launching, "GRACE_S", 0.5)
    made = stage_in(tmp_path)
    yield made
    made.clear()
    assert traces.alive() == []


def status_when(orders: StageOrders, phase: str) -> RelayLaunchStatus:
    assert wait_until(lambda: orders.status(()).phase == phase)
    return orders.status(())


def test_nothing_is_said_before_the_first_order(stage: LocalLauncher) -> None:
    assert StageOrders(stage).status(()) is None


def test_a_workload_is_started_replaced_and_ended(stage: LocalLauncher) -> None:
    orders = StageOrders(stage)
    orders.take(RelayLaunch(1, ("steady", "--size", "3"), 1))
    running = status_when(orders, "running")
    assert (running.number, running.failed, running.job) == (1, False, "")
    assert running.command_line.endswith("steady.py --size 3")
    orders.take(RelayLaunch(2, ("other",), 1))
    assert wait_until(lambda: orders.status(()).number == 2)
    assert wait_until(lambda: stage.running.startswith("other"))
    orders.take(RelayLaunch(3, (), None))
    ended = status_when(orders, "nothing")
    assert (ended.number, stage.running) == (3, "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("nonsense",), "no workload is called 'nonsense'"),
        (("steady", "--size", "x"), "argument --size"),
        (("steady", "--size=1;reboot"), "argument --size"),
        (("/bin/sh", "-c", "reboot"), "no workload is called '/bin/sh'"),
    ],
)
def test_an_order_is_checked_where_it_is_carried_out(
    stage: LocalLauncher, words: tuple[str, ...], why: str
) -> None:
    orders = StageOrders(stage)
    orders.take(RelayLaunch(1, words, None))
    status = status_when(orders, "over")
    assert status.failed
    assert why in status.how
    assert stage.running == ""


def test_a_job_that_fails_comes_with_what_it_said(stage: LocalLauncher) -> None:
    orders = StageOrders(stage)
    orders.take(RelayLaunch(1, ("broken",), 1))
    status = status_when(orders, "over")
    assert status.failed
    assert "ValueError: too large" in status.output


def test_an_order_that_comes_while_another_is_looked_at_takes_its_place(
    stage: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, may_go_on, plan = StageOrders(stage), threading.Event(), stage.plan

    def slow(order):
        if order.workload == "steady":
            may_go_on.wait(20)
        return plan(order)

    monkeypatch.setattr(stage, "plan", slow)
    orders.take(RelayLaunch(1, ("steady",), 1))
    assert orders.status(()).phase == "ending"
    orders.take(RelayLaunch(2, ("other",), 1))
    assert wait_until(lambda: stage.running.startswith("other"))
    may_go_on.set()
    assert status_when(orders, "running").number == 2
    assert stage.running.startswith("other")


@pytest.mark.parametrize("told_to_end", [False, True])
def test_a_job_is_kept_for_a_while_without_a_line_unless_the_relay_is_told_to_end(
    stage: LocalLauncher, monkeypatch: pytest.MonkeyPatch, told_to_end: bool
) -> None:
    monkeypatch.setattr(relay, "KEPT_S", 600.0 if told_to_end else 0.3)
    orders, ended = StageOrders(stage), threading.Event()
    orders.take(RelayLaunch(1, ("steady",), 1))
    status_when(orders, "running")
    if told_to_end:
        ended.set()
    relay.keep(orders, Door(orders), ended)
    assert stage.running.startswith("steady"), "whoever kept it ends it"


def test_a_job_that_is_over_keeps_nobody(stage: LocalLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "KEPT_S", 600.0)
    orders = StageOrders(stage)
    orders.take(RelayLaunch(1, ("short",), 1))
    relay.keep(orders, Door(orders), threading.Event())
    assert status_when(orders, "over").failed is False
