"""Jobs that a dashboard on another host starts through relays: what is carried out, and who owns them when
connections are lost and had again.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlaptop.launch import for_other_host, supervisor
from overlaptop.launch.for_other_host import RelayedLauncher
from overlaptop.launch.local import LocalLauncher
from overlaptop.launch.request import LaunchPlan, LaunchRequest
from overlaptop.wire.relaying import RelayLaunch, RelayLaunchStatus
from tests.processes import PATIENCE_S, Traces, eventually
from tests.relay.client import RelayProcess

from .jobs import launcher_in

OWNER = "0123456789abcdef"
STEADY = RelayLaunch(1, ("steady",), 1, OWNER)
OTHER = RelayLaunch(2, ("other",), 1, OWNER)
END = RelayLaunch(3, (), None, OWNER)


def again(request: RelayLaunch) -> RelayLaunch:
    return replace(request, again=True)


class Relayed(RelayedLauncher):
    """Of one relay, in this process."""

    def __init__(self, local: LocalLauncher) -> None:
        super().__init__(local)
        self.local = local

    def until(self, phase: str, number: int | None = None) -> RelayLaunchStatus:
        """Its status once it has this phase, of the request with this number."""

        def look() -> RelayLaunchStatus | None:
            status = self.status(())
            is_there = status is not None and status.phase == phase and number in (None, status.number)
            return status if is_there else None

        status = eventually(look)
        assert status is not None
        return status

    def carry_out(self, request: RelayLaunch) -> RelayLaunchStatus:
        """Its status once what is requested is done."""
        self.take(request)
        return self.until("running" if request.words else "nothing", request.number)


@pytest.fixture
def relays(tmp_path: Path, traces: Traces, short_grace: None) -> Iterator[Callable[[], Relayed]]:
    """Makes the launchers of relays of one host; none of their jobs outlives the test."""
    made: list[Relayed] = []

    def make() -> Relayed:
        made.append(Relayed(launcher_in(tmp_path)))
        return made[-1]

    yield make
    for each in made:
        each.local.close()
        each.release()
    eventually(lambda: traces.alive() == [])


@pytest.fixture
def first(relays: Callable[[], Relayed]) -> Relayed:
    """The launcher of a relay over which a job was started."""
    made = relays()
    made.carry_out(STEADY)
    return made


@pytest.fixture
def slow(relays: Callable[[], Relayed], monkeypatch: pytest.MonkeyPatch) -> tuple[Relayed, threading.Event]:
    """A launcher that plans its first job until it may go on."""
    relay, may_go_on = relays(), threading.Event()
    plan = relay.local.plan

    def plan_slowly(request: LaunchRequest) -> LaunchPlan:
        if request.workload == "steady":
            may_go_on.wait(PATIENCE_S)
        return plan(request)

    monkeypatch.setattr(relay.local, "plan", plan_slowly)
    relay.take(STEADY)
    relay.until("ending")
    return relay, may_go_on


# One relay


def test_a_workload_is_started_replaced_and_ended(relays: Callable[[], Relayed]) -> None:
    relay = relays()
    assert relay.status(()) is None, "nothing was requested"
    running = relay.carry_out(RelayLaunch(1, ("steady", "--size", "3"), 1))
    assert (running.number, running.failed, running.job) == (1, False, "")
    assert running.command_line.endswith("steady.py --size 3")
    relay.carry_out(OTHER)
    assert relay.local.running == "other (1 processes)"
    relay.carry_out(END)
    assert relay.local.running == ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("nonsense",), "no workload is called 'nonsense'"),
        (("steady", "--size=1;reboot"), "argument --size"),
        (("/bin/sh", "-c", "reboot"), "no workload is called '/bin/sh'"),
        (("broken",), "exit status 1"),
    ],
)
def test_a_request_is_checked_where_it_is_carried_out_and_its_failure_reported(
    relays: Callable[[], Relayed], words: tuple[str, ...], why: str
) -> None:
    relay = relays()
    relay.take(RelayLaunch(1, words, 1))
    status = relay.until("over")
    assert status.failed
    assert why in status.how
    assert relay.local.running == ""
    assert ("ValueError: too large" in status.output) == (words == ("broken",))


def test_a_request_that_comes_while_another_is_planned_takes_its_place(
    slow: tuple[Relayed, threading.Event],
) -> None:
    relay, may_go_on = slow
    relay.carry_out(OTHER)
    may_go_on.set()
    assert relay.local.running.startswith("other")


# The connection is lost


def test_the_next_relay_owns_replaces_and_ends_the_job_as_the_first_would(
    first: Relayed, relays: Callable[[], Relayed], socket_dir: Path
) -> None:
    (path,) = socket_dir.glob("launch-*")
    assert path.name == f"launch-{os.getpid()}-{OWNER}.sock"
    assert stat.S_ISSOCK(path.lstat().st_mode)
    first.release()
    after = relays()
    status = after.carry_out(again(STEADY))
    assert not status.failed
    assert "steady.py" in status.command_line
    assert after.local.running.startswith("steady")
    after.carry_out(OTHER)
    last = relays()
    after.release()
    last.carry_out(again(OTHER))
    last.carry_out(END)
    last.release()
    assert list(socket_dir.glob("launch-*")) == []


def test_a_job_ends_when_nobody_has_come_back_for_it_in_time(
    relays: Callable[[], Relayed], socket_dir: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(for_other_host, "WITHOUT_OWNER_S", 0.5)
    relay = relays()
    relay.carry_out(STEADY)
    owned_until_s = time.monotonic() + 2 * for_other_host.WITHOUT_OWNER_S
    eventually(lambda: time.monotonic() > owned_until_s)
    assert relay.until("running"), "it has an owner: no time passes for it"
    released_s = time.monotonic()
    relay.release()
    eventually(lambda: traces.alive() == [])
    assert time.monotonic() - released_s >= for_other_host.WITHOUT_OWNER_S
    assert list(socket_dir.glob("launch-*")) == []
    after = relays()
    after.take(again(STEADY))
    assert "the connection was lost" in after.until("over").how


def test_who_comes_last_is_the_owner(first: Relayed, relays: Callable[[], Relayed]) -> None:
    second = relays()
    assert not first.superseded
    second.carry_out(again(STEADY))
    assert first.superseded
    assert first.until("over").how == "a later connection has taken it over"
    first.take(OTHER)
    first.until("nothing")
    assert second.until("running", 1), "who was the owner before replaces nothing"


def test_a_relay_that_waits_for_requests_makes_way_for_a_later_one(
    first: Relayed, relays: Callable[[], Relayed]
) -> None:
    first.carry_out(END)
    second = relays()
    second.take(again(END))
    eventually(lambda: first.superseded)
    assert second.status(()) is None
    first.release()
    second.until("nothing", 3)


def test_a_job_that_is_being_replaced_is_had_when_the_new_one_runs(
    slow: tuple[Relayed, threading.Event], relays: Callable[[], Relayed]
) -> None:
    relay, may_go_on = slow
    after = relays()
    after.take(again(STEADY))
    assert after.status(()) is None
    assert not relay.superseded
    released = threading.Thread(target=relay.release)
    released.start()
    may_go_on.set()
    after.until("running", 1)
    released.join(PATIENCE_S)
    assert after.local.running.startswith("steady")


def test_a_request_that_was_lost_with_the_connection_is_carried_out_by_the_next(
    first: Relayed, relays: Callable[[], Relayed]
) -> None:
    first.release()
    after = relays()
    after.carry_out(again(OTHER))
    assert after.local.running.startswith("other")


def test_another_dashboard_of_this_user_takes_nothing_over(
    first: Relayed, relays: Callable[[], Relayed]
) -> None:
    theirs = relays()
    theirs.take(again(replace(STEADY, owner="f" * 16)))
    assert not theirs.until("over").failed
    assert first.local.running.startswith("steady")
    theirs.carry_out(replace(OTHER, owner="f" * 16))
    assert theirs.local.running.startswith("other"), "what it requests anew is its own"


def test_a_stale_socket_is_removed_and_nothing_begun_anew(
    relays: Callable[[], Relayed], socket_dir: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(socket_dir / f"launch-1-{OWNER}.sock"))
    relays().take(again(END))
    after = relays()
    after.take(again(STEADY))
    assert after.until("over").number == 1
    assert after.local.running == ""
    assert list(socket_dir.iterdir()) == []


def test_a_directory_that_others_may_enter_hides_the_job_until_it_is_closed(
    first: Relayed, relays: Callable[[], Relayed], socket_dir: Path
) -> None:
    first.release()
    for mode, phase in ((0o755, "over"), (0o700, "running")):
        socket_dir.chmod(mode)
        after = relays()
        after.take(again(STEADY))
        after.until(phase)
        assert bool(after.local.running) == (phase == "running")


def test_a_job_whose_supervisor_was_killed_has_ended(first: Relayed, relays: Callable[[], Relayed]) -> None:
    first.release()
    after = relays()
    after.carry_out(again(STEADY))
    (supervisor_pid,) = {
        pid
        for pid in supervisor.descendants(os.getpid())
        if b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    os.kill(supervisor_pid, 9)
    status = after.until("over")
    assert (status.failed, status.how) == (True, "killed by SIGKILL")


def test_whoever_does_not_know_the_key_is_turned_away_and_the_job_goes_on(
    first: Relayed, socket_dir: Path
) -> None:
    (path,) = socket_dir.glob("launch-*")
    for data in (b"", b"\xff\xff\xff\xff", b"f" * 16, b"end\n"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.connect(str(path))
            with suppress(ConnectionResetError, BrokenPipeError):
                stranger.sendall(data)
                assert stranger.recv(1 << 16) == b""
        assert not first.superseded
        assert first.until("running")


def test_a_socket_directory_with_too_long_a_name_costs_only_being_found(
    relays: Callable[[], Relayed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("a" * 100)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(folder))
    relays().carry_out(STEADY)
    assert list(folder.iterdir()) == []


@pytest.mark.timeout(240)
def test_a_real_job_goes_from_connection_to_connection_and_ends_with_the_last(
    traces: Traces, socket_dir: Path
) -> None:
    small = ("--device", "cpu", "--matrix", "32", "--products", "2", "--size-mb", "0.1", "--data-ms", "50")
    request = RelayLaunch(1, ("allreduce_matmul", *small), 1, OWNER)
    with ExitStack() as stack:

        def connected() -> RelayProcess:
            made = RelayProcess()
            stack.callback(made.close)
            return made

        def runs(relay: RelayProcess) -> RelayLaunchStatus:
            def found() -> list[RelayLaunchStatus]:
                relay.client.poll()
                return [status for status in relay.client.of(RelayLaunchStatus) if status.job]

            return eventually(found, patience_s=90)[0]  # torch is imported

        first = connected()
        assert first.process.stderr is not None
        first.process.stderr.close()  # as where ssh was killed: nobody reads what it writes at the end
        first.client.send(request)
        begun = runs(first)

        second = connected()  # while the first connection is frozen
        second.client.send(again(request))
        status = runs(second)
        assert (status.number, status.phase, status.job) == (1, "running", begun.job)
        first.client.until_over()
        assert first.process.wait(PATIENCE_S) == 0
        second.process.kill()
        second.process.wait(PATIENCE_S)

        third = connected()
        third.client.send(again(request))
        assert runs(third).job == begun.job
        third.client.send(RelayLaunch(2, (), None, OWNER))
        third.client.receive(
            RelayLaunchStatus, lambda status: (status.number, status.phase) == (2, "nothing")
        )
        third.client.close_input()
        assert third.process.wait(PATIENCE_S) == 0
    eventually(lambda: traces.alive() == [])
    assert list(socket_dir.glob("launch-*")) == []
