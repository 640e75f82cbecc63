"""A job that was started over a line that broke: who keeps it, and who takes it over."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from overlaptop.commands import relay
from overlaptop.commands.relay import StageOrders
from overlaptop.launch import launcher as launching
from overlaptop.launch.local import LocalLauncher
from overlaptop.relay.handover import Door, LineOrders
from overlaptop.wire.codec import encode, frame
from overlaptop.wire.relaying import RelayLaunch, RelayLaunchStatus, RelayPing
from tests.remote.near import RelayProcess

from .conftest import Traces, wait_until
from .test_stage import stage_in

OWNER = "0123456789abcdef"
STEADY = RelayLaunch(1, ("steady",), 1, OWNER)


def again(order: RelayLaunch) -> RelayLaunch:
    return replace(order, again=True)


class Host:
    """The relays of one host, all in this process, and what they would start."""

    def __init__(self, stage: LocalLauncher, other: LocalLauncher) -> None:
        self.stage, self.other = stage, other
        self.orders = StageOrders(stage)
        self.door = Door(self.orders)
        self.first = LineOrders(self.orders, self.door)
        """Of the line that breaks."""
        self.ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep)

    def drop(self) -> None:
        """The first line breaks."""
        self._keeper.start()

    def _keep(self) -> None:
        relay.keep(self.orders, self.door, self.ended)
        self.door.close()

    @property
    def keeps(self) -> bool:
        return self._keeper.is_alive()

    def relay_after(self) -> LineOrders:
        """Of a line that comes after; it starts nothing where this could."""
        orders = StageOrders(self.other)
        return LineOrders(orders, Door(orders))

    def close(self) -> None:
        self.ended.set()
        if self._keeper.is_alive():
            self._keeper.join(20)
        self.door.close()
        self.stage.clear()
        self.other.clear()


@pytest.fixture
def host(tmp_path: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(launching, "GRACE_S", 0.5)
    (tmp_path / "other").mkdir()
    made = Host(stage_in(tmp_path), stage_in(tmp_path / "other"))
    yield made
    made.close()
    assert not made.keeps
    assert traces.alive() == []


def said(orders: LineOrders, where: Callable[[RelayLaunchStatus], bool]) -> RelayLaunchStatus:
    assert wait_until(lambda: (status := orders.status(())) is not None and where(status))
    status = orders.status(())
    assert status is not None
    return status


def begun(host: Host) -> Host:
    host.first.take(STEADY)
    said(host.first, lambda status: status.phase == "running")
    return host


def test_the_relay_of_the_next_line_replaces_and_ends_the_job_as_the_first_would(
    host: Host, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "KEPT_S", 0.5)
    begun(host)
    (path,) = socket_dir.glob("relay-*")
    assert path.name == f"relay-{os.getpid()}-{OWNER}.sock"
    assert stat.S_ISSOCK(path.lstat().st_mode)
    after = host.relay_after()
    after.take(again(STEADY))
    assert after.status(()) is None, "the first line may be up still"
    host.drop()
    status = said(after, lambda status: status.phase == "running")
    assert (status.number, status.failed) == (1, False)
    assert "steady.py" in status.command_line
    until_s = time.monotonic() + 2 * relay.KEPT_S
    assert wait_until(lambda: time.monotonic() > until_s)
    assert host.keeps
    assert host.stage.running.startswith("steady"), "it is watched: no time passes for it"
    after.take(RelayLaunch(2, ("other",), 1, OWNER))
    said(after, lambda status: (status.number, status.phase) == (2, "running"))
    assert host.stage.running.startswith("other")
    after.take(RelayLaunch(3, (), None, OWNER))
    said(after, lambda status: (status.number, status.phase) == (3, "nothing"))
    assert host.stage.running == host.other.running == ""
    after.close()
    assert wait_until(lambda: not host.keeps)
    assert list(socket_dir.glob("relay-*")) == []


def test_a_line_that_breaks_once_more_begins_the_time_anew(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "KEPT_S", 0.3)
    begun(host)
    after = host.relay_after()
    after.take(again(STEADY))
    host.drop()
    said(after, lambda status: status.phase == "running")
    after.close()
    assert wait_until(lambda: not host.keeps)


def test_who_comes_last_speaks_for_the_near_end(host: Host) -> None:
    begun(host).drop()
    second, third = host.relay_after(), host.relay_after()
    second.take(again(STEADY))
    said(second, lambda status: status.phase == "running")
    third.take(again(STEADY))
    said(third, lambda status: status.phase == "running")
    assert said(second, lambda status: status.phase == "over").how
    assert host.stage.running.startswith("steady")


def test_a_line_is_over_when_its_near_end_has_come_back_over_another(host: Host) -> None:
    begun(host)
    assert not host.door.knocked
    host.relay_after().take(again(STEADY))
    assert wait_until(lambda: host.door.knocked)


def test_an_order_that_was_lost_with_the_line_is_carried_out_by_who_keeps_the_job(host: Host) -> None:
    begun(host).drop()
    after = host.relay_after()
    after.take(again(RelayLaunch(2, ("other",), 1, OWNER)))
    said(after, lambda status: (status.number, status.phase) == (2, "running"))
    assert host.stage.running.startswith("other")


def test_another_near_end_of_this_user_takes_nothing_over(host: Host) -> None:
    begun(host).drop()
    after = host.relay_after()
    after.take(again(replace(STEADY, owner="f" * 16)))
    status = said(after, lambda status: status.phase == "over")
    assert (status.failed, "the line was lost" in status.how) == (False, True)
    assert host.stage.running.startswith("steady")
    assert host.other.running == ""
    after.take(RelayLaunch(2, ("other",), 1, "f" * 16))
    said(after, lambda status: (status.number, status.phase) == (2, "running"))
    assert host.other.running.startswith("other"), "what is ordered anew is its own"


@pytest.mark.parametrize("what", ["nothing", "a stale socket", "an open directory"])
def test_where_nobody_keeps_it_nothing_is_begun_anew(host: Host, socket_dir: Path, what: str) -> None:
    if what == "a stale socket":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(socket_dir / f"relay-1-{OWNER}.sock"))
    elif what == "an open directory":
        begun(host).drop()
        socket_dir.chmod(0o755)
    after = host.relay_after()
    after.take(again(STEADY))
    assert said(after, lambda status: status.phase == "over").number == 1
    assert host.other.running == ""
    after.take(again(RelayLaunch(2, (), None, OWNER)))
    assert said(after, lambda status: status.number == 2).phase == "nothing"
    socket_dir.chmod(0o700)


def test_the_end_of_who_kept_it_is_told(host: Host) -> None:
    begun(host).drop()
    after = host.relay_after()
    after.take(again(STEADY))
    said(after, lambda status: status.phase == "running")
    host.ended.set()
    assert "has ended" in said(after, lambda status: status.phase == "over").how


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        frame(b"no message"),
        frame(encode(RelayPing(1))),
        frame(encode(RelayLaunch(2, (), None, "f" * 16))),
        frame(encode(RelayLaunch(2, (), None))),
    ],
)
def test_whoever_says_something_else_is_left_and_the_job_goes_on(
    host: Host, socket_dir: Path, data: bytes
) -> None:
    begun(host).drop()
    (path,) = socket_dir.glob("relay-*")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(20)
        stranger.connect(str(path))
        stranger.sendall(data)
        try:
            while stranger.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
    assert host.keeps
    assert host.stage.running.startswith("steady")


def test_a_name_that_is_too_long_costs_only_being_found(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("a" * 100)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(folder))
    begun(host)
    assert not host.door.is_open
    assert list(folder.iterdir()) == []


@pytest.mark.timeout(240)
def test_a_real_job_goes_from_line_to_line_and_ends_with_the_last(traces: Traces, socket_dir: Path) -> None:
    small = ("--device", "cpu", "--matrix", "32", "--products", "2", "--size-mb", "0.1", "--data-ms", "50")
    order = RelayLaunch(1, ("allreduce_matmul", *small), 1, OWNER)
    with ExitStack() as stack:

        def connected() -> RelayProcess:
            made = RelayProcess()
            stack.callback(made.close)
            return made

        first = connected()
        assert first.process.stderr is not None
        first.process.stderr.close()  # as where ssh was killed: nobody reads what it says at its line's end
        first.near.say(order)
        begun = first.near.hear(RelayLaunchStatus, lambda status: status.job != "")

        second = connected()  # while the first line is frozen
        second.near.say(again(order))
        status = second.near.hear(RelayLaunchStatus, lambda status: status.job != "")
        assert (status.number, status.phase, status.job) == (1, "running", begun.job)
        first.near.until_over()
        first.near.close()

        second.near.close()
        assert second.process.wait(20) == 0
        third = connected()
        third.near.say(again(order))
        status = third.near.hear(RelayLaunchStatus, lambda status: status.job != "")
        assert status.job == begun.job
        third.near.say(RelayLaunch(2, (), None, OWNER))
        third.near.hear(RelayLaunchStatus, lambda status: (status.number, status.phase) == (2, "nothing"))
        third.near.hang_up()
        assert third.process.wait(20) == 0
        assert first.process.wait(20) == 0
    assert traces.alive() == []
    assert list(socket_dir.glob("relay-*")) == []
