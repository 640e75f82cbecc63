"""A line to real processes: those that behave, and those that die, freeze, flood or send rubbish."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from pathlib import Path
from selectors import DefaultSelector

import pytest

from overlaptop.remote.attempt import MAX_INBOX_BYTES, PATIENCE_S, SILENT_S
from overlaptop.remote.connection import BACK_OFF_S, JITTER, REFUSED_PAUSE_S, Connection, ConnectionState
from overlaptop.remote.targets import Target
from overlaptop.wire.codec import WireError, encode
from overlaptop.wire.messages import PROTOCOL_VERSION as VERSION
from overlaptop.wire.messages import RankInfo
from overlaptop.wire.relaying import RelayJobs, RelayLimit, RelayLink, RelaySelect
from tests.remote.far_ends import AHEAD_NS, HELLO, JOB
from tests.remote.lines import Lines, eventually, open_descriptors, runs


def up(lines: Lines, behaviour: str, **options: object) -> Connection:
    line = lines(behaviour, **options)
    lines.until(line, lambda: line.ready)
    return line


def lost(lines: Lines, behaviour: str | Target) -> Connection:
    """A line whose first try has come to nothing, or to little."""
    line = lines(behaviour)
    lines.until(line, lambda: line.state in (ConnectionState.DOWN, ConnectionState.FAILED))
    return line


def test_a_relay_is_greeted_and_heard(lines: Lines) -> None:
    line = lines("plain")
    assert line.state is ConnectionState.CONNECTING
    assert lines.heard(line, RelayJobs).jobs == (JOB,)
    assert line.state is ConnectionState.UP
    assert line.hello == HELLO
    assert line.reason == ""
    assert line.retry_in_s is None


def test_an_interrupt_while_a_process_is_started_leaves_it_to_be_ended(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    line, handler = lines("mute"), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        line.start()
    assert signal.getsignal(signal.SIGINT) is handler
    (carrier,) = line.carriers
    assert runs(carrier.pid)
    line.close()
    assert not runs(carrier.pid)


def test_what_is_said_arrives(lines: Lines) -> None:
    line = up(lines, "plain")
    assert line.say(RelaySelect("job-1"))
    assert lines.heard(line, RelayLink) == RelayLink("job-1", True)


def test_nothing_is_said_where_there_is_no_relay(lines: Lines) -> None:
    line = lines("mute")
    assert not line.say(RelaySelect("job-1"))
    line.poll()
    assert not line.say(RelaySelect("job-1"))


def test_what_is_no_message_is_an_error_of_whoever_says_it(lines: Lines) -> None:
    line = up(lines, "plain")
    with pytest.raises(WireError):
        line.say(RelayLimit(-1, 0.0))


def test_a_login_banner_does_no_harm(lines: Lines) -> None:
    line = up(lines, "banner")
    assert line.state is ConnectionState.UP
    assert line.detail == ""


def test_the_clock_of_the_host_is_known_by_the_round_trips(lines: Lines) -> None:
    line = lines("ahead")
    lines.until(line, lambda: line.clock.offset_ns is not None)
    lines.wait(line, 10)
    assert line.clock.offset_ns is not None
    assert line.clock.residual_ns is not None
    assert abs(line.clock.offset_ns - AHEAD_NS) <= line.clock.residual_ns + 1


def test_a_host_without_a_job_is_up_and_asked_again_each_second_until_there_is_one(lines: Lines) -> None:
    line = lines("waiting")
    lines.until(line, lambda: line.state is ConnectionState.UP)
    assert line.reason == "no job in /tmp/x"
    assert not line.ready
    since_s = line.since_s
    lines.until(line, lambda: lines.wait(line, 1.0) or line.ready)
    assert line.hello == HELLO
    assert (line.state, line.reason, line.since_s) == (ConnectionState.UP, "", since_s)


def test_the_start_scripts_own_words_are_the_reason(lines: Lines) -> None:
    line = lost(lines, "failing")
    assert (line.state, line.reason) == (ConnectionState.DOWN, "/tmp/x belongs to uid 7, not to you")


def test_a_relay_that_dies_is_told_of_by_its_last_words_and_had_again(lines: Lines) -> None:
    line = lost(lines, "dies")
    assert line.reason == "it ended with status 3: OSError: the disk ?[2J is full"
    assert "Traceback" in line.detail
    assert line.relays == 1
    lines.clock.now_s += BACK_OFF_S[0] * (1 + JITTER)
    lines.until(line, lambda: line.relays == 2)


def test_since_when_it_is_lost_stays_the_same_while_it_is_tried_again(lines: Lines) -> None:
    line = up(lines, "plain")
    lines.wait(line, 3)
    os.kill(line.carriers[0].pid, signal.SIGKILL)
    lines.until(line, lambda: line.state is ConnectionState.DOWN)
    since_s = line.since_s
    assert since_s == lines.clock.now_s
    assert "signal (9)" in line.reason
    line.target = Target.via("false")
    for _ in range(3):
        lines.wait(line, 5)
        lines.until(line, lambda: line.state is ConnectionState.DOWN)
        assert line.since_s == since_s


def test_the_pauses_grow_and_a_line_that_was_up_for_a_minute_begins_anew(lines: Lines) -> None:
    line = lines(Target.via("false"))
    for pause_s in (*BACK_OFF_S, BACK_OFF_S[-1]):
        lines.until(line, lambda: line.state is ConnectionState.DOWN)
        assert line.retry_in_s is not None
        assert pause_s <= line.retry_in_s <= pause_s * (1 + JITTER)
        lines.clock.now_s += line.retry_in_s
    line.target = lines("plain").target
    lines.until(line, lambda: line.ready)
    lines.wait(line, 61)
    assert line.ready
    os.kill(line.carriers[0].pid, signal.SIGKILL)
    lines.until(line, lambda: line.state is ConnectionState.DOWN)
    assert line.retry_in_s is not None
    assert line.retry_in_s <= BACK_OFF_S[0] * (1 + JITTER)


def test_a_frozen_line_is_noticed_and_its_process_ended(lines: Lines) -> None:
    line = up(lines, "frozen")
    pid = line.carriers[0].pid
    lines.wait(line, SILENT_S)
    assert line.state is ConnectionState.UP
    lines.wait(line, 1)
    assert line.state is ConnectionState.DOWN
    assert line.reason == "the line was silent for 8 s"
    eventually(lambda: line.poll() is not None and not runs(pid))


def test_a_stopped_process_is_a_frozen_line(lines: Lines) -> None:
    line = up(lines, "plain")
    pid = line.carriers[0].pid
    os.kill(pid, signal.SIGSTOP)
    lines.wait(line, SILENT_S + 1)
    assert line.reason == "the line was silent for 8 s"
    eventually(lambda: line.poll() is not None and not runs(pid))


def test_a_near_end_that_slept_does_not_take_its_own_silence_for_the_lines(lines: Lines) -> None:
    line = up(lines, "plain")
    lines.clock.now_s += 3600
    line.poll()
    assert line.state is ConnectionState.UP
    lines.wait(line, 20)
    assert line.state is ConnectionState.UP
    assert line.relays == 1


def test_a_host_that_never_answers_is_given_up_after_half_a_minute(lines: Lines) -> None:
    line = lines("mute")
    lines.until(line, lambda: line.knocking)
    lines.wait(line, PATIENCE_S)
    assert line.state is ConnectionState.CONNECTING
    lines.wait(line, 1)
    assert line.state is ConnectionState.DOWN
    assert line.reason == "the host does not answer: nothing came for 30 s"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("older", f"protocol {VERSION - 1}, this one {VERSION}: that one is older, update it"),
        ("newer", f"protocol {VERSION + 1}, this one {VERSION}: this one is older, update it"),
        ("unknown", "not to be understood"),
        ("rude", "does not say who it is"),
        ("chatty", "is no relay: 65536 bytes came"),
        ("huge", "is no relay: a frame of 4294967295 bytes"),
    ],
)
def test_what_cannot_be_spoken_to_is_told_in_one_line_and_ended(
    lines: Lines, behaviour: str, reason: str
) -> None:
    line = lines(behaviour)
    line.poll()
    pid = line.carriers[0].pid
    lines.until(line, lambda: line.state is ConnectionState.DOWN)
    assert re.search(reason, line.reason)
    assert line.reason.isprintable()
    eventually(lambda: line.poll() is not None and not runs(pid))


def test_frames_that_are_no_messages_are_counted_and_passed_over(lines: Lines) -> None:
    line = up(lines, "rubbish")
    lines.until(line, lambda: line.dropped >= 3)
    lines.until(line, lambda: line.clock.offset_ns is not None)
    assert line.dropped == 3 + 3, "three frames here, and three that the far end says it dropped"
    assert line.state is ConnectionState.UP


def test_what_the_far_ends_dropped_adds_up_over_the_lines_losses(lines: Lines) -> None:
    line = up(lines, "plain")
    lines.until(line, lambda: line.dropped == 3)
    os.kill(line.carriers[0].pid, signal.SIGKILL)
    lines.until(line, lambda: line.state is ConnectionState.DOWN)
    assert line.dropped == 3
    lines.clock.now_s += 2
    lines.until(line, lambda: line.ready and line.dropped == 6)


def test_a_flood_is_taken_in_bounded_pieces(lines: Lines) -> None:
    with DefaultSelector() as selector:
        line = up(lines, "flood", selector=selector)
        while selector.get_map():
            selector.select(20)
            line.receive()
        received = [message for message in line.poll() if isinstance(message, RankInfo)]
        frame_bytes = len(encode(received[0]))
        assert MAX_INBOX_BYTES // 2 < len(received) * frame_bytes < 2 * MAX_INBOX_BYTES
        lines.wait(line, 3)
        assert line.state is ConnectionState.UP
        assert line.bytes_per_s
        line.close()


def test_with_a_selector_polls_that_follow_close_on_each_other_look_once(lines: Lines) -> None:
    with DefaultSelector() as selector:
        line = up(lines, "plain", selector=selector)
        lines.until(line, lambda: line.settled)
        line.say(RelaySelect("job-1"))
        assert selector.select(20)
        lines.clock.now_s += 0.004
        line.poll()
        assert selector.select(0)
        lines.clock.now_s += 0.007
        assert lines.heard(line, RelayLink) == RelayLink("job-1", True)
        line.close()


def test_a_far_end_that_does_not_read_stops_what_is_said_and_nothing_else(lines: Lines) -> None:
    line = up(lines, "deaf")
    said = 0
    while line.say(RelaySelect("job-1")):
        said += 1
        assert said < 1_000_000
    assert line.state is ConnectionState.UP
    assert lines.heard(line, RelayJobs) == RelayJobs((), "")


def test_a_far_end_that_talks_and_does_not_answer_is_not_waited_for_without_end(lines: Lines) -> None:
    line = up(lines, "deaf")
    assert not line.settled
    lines.wait(line, SILENT_S)
    assert line.settled
    assert line.state is ConnectionState.UP
    assert line.clock.offset_ns is None


def test_what_a_process_leaves_behind_is_ended_with_it(lines: Lines) -> None:
    line = lost(lines, "leaving")
    group = int(re.search(r"child of (\d+)", line.detail)[1])
    eventually(lambda: not members(group))


def members(group: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state not in "ZX":
            found.append(int(path.parent.name))
    return found


def test_closing_leaves_no_process_however_stubborn_and_no_descriptor(lines: Lines) -> None:
    before = open_descriptors()
    line = lines("stubborn")
    lines.until(line, lambda: line.ready)
    pid = line.carriers[0].pid
    line.close()
    assert not runs(pid)
    assert open_descriptors() == before
    lines.clock.now_s += 100
    assert line.poll() == []
    assert line.carriers == ()


def test_a_lost_line_leaves_no_descriptor(lines: Lines) -> None:
    before = open_descriptors()
    line = lost(lines, "dies")
    lines.until(line, lambda: not line.carriers)
    assert open_descriptors() == before


def test_a_line_that_has_worked_and_is_refused_comes_back_by_itself(lines: Lines) -> None:
    line = lines("plain")
    lines.until(line, lambda: line.ready)
    good, line.target = line.target, Target.via("/nowhere/at-all")
    os.kill(line.carriers[0].pid, signal.SIGKILL)
    lines.until(line, lambda: line.state is ConnectionState.DOWN)
    lines.wait(line, 2 * BACK_OFF_S[0])
    lines.until(line, lambda: line.reason.startswith("there is no /nowhere"))
    assert line.state is ConnectionState.DOWN
    line.target = good
    lines.wait(line, BACK_OFF_S[-1])
    assert not line.ready
    lines.wait(line, REFUSED_PAUSE_S * (1 + JITTER))
    lines.until(line, lambda: line.ready)


def test_a_program_that_is_not_there_needs_a_person(lines: Lines) -> None:
    line = lost(lines, Target.via("/nowhere/at-all"))
    assert line.state is ConnectionState.FAILED
    assert line.reason == "there is no /nowhere/at-all on this machine"
    lines.wait(line, 120)
    assert line.state is ConnectionState.FAILED
    line.target = lines("plain").target
    line.retry()
    lines.until(line, lambda: line.ready)


def test_a_line_may_be_told_to_wait_with_its_try(lines: Lines) -> None:
    free = False
    line = lines("plain", may_start=lambda: free)
    lines.wait(line, 5)
    assert line.carriers == ()
    free = True
    lines.until(line, lambda: line.ready)


def test_a_selector_is_woken_by_what_comes_and_forgets_a_line_that_is_full_or_gone(lines: Lines) -> None:
    with DefaultSelector() as selector:
        line = lines("flood", selector=selector)
        line.start()
        assert selector.select(20)
        while selector.get_map():
            for key, _ in selector.select(20):
                assert key.data is line
                line.receive()
        line.poll()
        assert selector.get_map()
        line.close()
        assert not selector.get_map()


def test_the_last_words_before_a_loss_are_heard(lines: Lines) -> None:
    line = lines("dies")
    heard = []
    eventually(lambda: heard.extend(line.poll()) or line.state is ConnectionState.DOWN)
    heard += line.poll()
    assert RelayJobs((JOB,), "") in heard


def test_a_prefix_that_wants_a_password_may_ask_for_it(lines: Lines, tmp_path: Path) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text("#!/bin/sh\necho 'sudo: a terminal is required to read the password' >&2; exit 1\n")
    sudo.chmod(0o755)
    line = lost(lines, Target.via(f"{sudo} -u trainer"))
    assert line.asks
    assert line.reason == "sudo asks for a password: allow the command without one (NOPASSWD)"


# ssh's own words. A stand-in for ssh prints them: what is proven is what the user reads.

SSH_SAYS = [
    (
        "Host key verification failed.",
        ConnectionState.FAILED,
        True,
        "its host key is not known here: connect once with ssh gpu-a and confirm it",
    ),
    (
        "@@@@@@@@@@@@@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        "IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\nHost key verification failed.",
        ConnectionState.FAILED,
        False,
        "its host key is another than before: if that is as it should be, ssh-keygen -R gpu-a",
    ),
    (
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n  remove with:\r\n"
        "  ssh-keygen -f '/home/me/.ssh/known_hosts' -R '[gpu-a]:2222'\r\nHost key verification failed.",
        ConnectionState.FAILED,
        False,
        "as it should be, ssh-keygen -f '/home/me/.ssh/known_hosts' -R '[gpu-a]:2222'",
    ),
    (
        "me@gpu-a: Permission denied (publickey,password).",
        ConnectionState.FAILED,
        True,
        "permission denied (publickey,password): ssh-add the key, or put it there with ssh-copy-id gpu-a",
    ),
    (
        "@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\nLoad key: bad permissions\n"
        "me@gpu-a: Permission denied (publickey).",
        ConnectionState.FAILED,
        True,
        "others can read the private key, so ssh does not use it: chmod 600 the key",
    ),
    (
        "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
        ConnectionState.FAILED,
        True,
        "IdentitiesOnly",
    ),
    (
        "ssh: Could not resolve hostname gpu-a: Name or service not known",
        ConnectionState.DOWN,
        False,
        "no address is known for gpu-a: look at its spelling, the VPN, or ~/.ssh/config",
    ),
    (
        "ssh: connect to host gpu-a port 2222: Connection refused",
        ConnectionState.DOWN,
        False,
        "the host refuses port 2222: no sshd runs there, or it listens on another port",
    ),
    (
        "ssh: connect to host gpu-a port 22: No route to host",
        ConnectionState.DOWN,
        False,
        "the host does not answer (No route to host)",
    ),
    (
        "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.1 port 22",
        ConnectionState.DOWN,
        False,
        "its sshd hung up before a login",
    ),
    (
        "Timeout, server gpu-a not responding.",
        ConnectionState.DOWN,
        False,
        "the line was silent for too long",
    ),
    ("client_loop: send disconnect: Broken pipe", ConnectionState.DOWN, False, "the line broke"),
    (
        "/home/me/.ssh/config: line 3: Bad configuration option: prot\n"
        "/home/me/.ssh/config: terminating, 1 bad configuration options",
        ConnectionState.FAILED,
        False,
        "ssh does not start: /home/me/.ssh/config: line 3: Bad configuration option: prot",
    ),
    (
        "This account is currently not available.",
        ConnectionState.FAILED,
        False,
        "lets this user run no commands",
    ),
    (
        "/usr/bin/python3: No module named overlaptop",
        ConnectionState.DOWN,
        False,
        "/usr/bin/python3 there has no overlaptop: pip install it there, or name another one with --python",
    ),
    (
        "overlaptop: error: argument command: invalid choice: 'relay' (choose from demo)",
        ConnectionState.DOWN,
        False,
        "the overlaptop there is older and has no relay: update it",
    ),
    ("\x1b[2Jsomething\nnew\x07", ConnectionState.DOWN, False, "it ended with status 255: new?"),
    ("", ConnectionState.DOWN, False, "it ended with status 255"),
]


@pytest.mark.parametrize(("says", "state", "asks", "reason"), SSH_SAYS, ids=lambda value: str(value)[:30])
def test_what_ssh_says_becomes_one_line_with_a_remedy(
    lines: Lines,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    state: ConnectionState,
    asks: bool,
    reason: str,
) -> None:
    (tmp_path / "words").write_text(says)
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\ncat {tmp_path}/words >&2\nexit 255\n")
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("OVERLAPTOP_SSH", str(ssh))
    line = lost(lines, Target.parse("gpu-a"))
    assert reason in line.reason
    assert (line.state, line.asks) == (state, asks)
    assert line.reason.isprintable()
