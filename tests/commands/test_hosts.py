"""Other hosts on the command line: what names one, what is said of each, and whose jobs are shown."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overlaptop import cli
from overlaptop.commands import watch
from overlaptop.console import CommandError, hosts
from overlaptop.console.hosts import ConnectionReporter, Hosts, connect
from overlaptop.console.once import render, settle
from overlaptop.console.stream import is_lost
from overlaptop.remote.targets import Target
from tests.fleet.builders import status, step, welcome
from tests.remote.connections import FAKE_RELAYS, runs
from tests.tui.clusters import Cluster

from .conftest import wait_until
from .test_cli import overlaptop


def fake_relay(behaviour: str) -> str:
    """A command prefix that reaches one of tests/remote/fake_relays.py."""
    return shlex.join([sys.executable, str(FAKE_RELAYS), behaviour])


def named(*words: str) -> Hosts | None:
    return hosts.named(watch.parser().parse_intermixed_args(words))


def words_of(*words: str) -> list[str]:
    found = named(*words)
    assert found is not None
    return [target.word for target in found.targets]


def test_hosts_are_words_a_file_and_command_prefixes_between_the_other_options(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("gpu-c  # the third\n\ndocker://trainer\n")
    words = ["me@gpu-a", "--json", "gpu-b", "--hosts", str(file), "--via", "sudo -u trainer"]
    assert words_of(*words) == ["me@gpu-a", "gpu-b", "gpu-c", "docker://trainer", "via sudo -u trainer"]


def test_without_a_host_there_is_none() -> None:
    assert named() is None


def test_how_they_are_reached_goes_with_them() -> None:
    found = named("gpu-a", "--python", "/opt/py", "--remote-dir", "~/o", "--rate", "20k")
    assert found == Hosts((Target.parse("gpu-a"),), "/opt/py", "~/o", 20_000)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("20k", 20_000), ("1M", 1_000_000), ("1.5m", 1_500_000), ("64000", 64_000), ("20kB/s", 20_000)],
)
def test_a_rate_is_bytes_a_second(text: str, bytes_per_s: int) -> None:
    found = named("gpu-a", "--rate", text)
    assert found is not None
    assert found.bytes_per_s == bytes_per_s


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["ftp://gpu-a"], "there is no ftp://"),
        (["gpu a"], "names no host"),
        (["gpu-a:2222"], "a port is named as in ssh://gpu-a:2222"),
        (["slurm:x"], "slurm:1234"),
        (["--hosts", "/no/such/file"], "--hosts /no/such/file: No such file or directory"),
        (["--via", "'"], "no closing quotation"),
        (["--python", "/opt/py"], "--python goes with a host"),
        (["--remote-dir", "/x"], "--remote-dir goes with a host"),
        (["--rate", "20k"], "--rate goes with a host"),
        (["gpu-a", "--json", "--python", "it's"], "cannot travel"),
    ],
)
def test_what_names_no_host_is_one_line_and_status_2(words: list[str], reason: str) -> None:
    done = overlaptop("--once", *[word for word in words if word != "--json"])
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["gpu-a", "demo"], "demo is a command and comes first; a host of that name is ssh://demo"),
        (["--json", "set"], "set is a command and comes first"),
        (["gpu-a", "--rate", "fast"], "must be 1k bytes a second or more"),
        (["gpu-a", "--rate", "10"], "must be 1k bytes a second or more"),
        (["tune", "ddp", "--host", "gpu-a"], "SCRIPT is started here: give no host with it"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_host_called_like_a_command_can_be_named() -> None:
    assert words_of("ssh://demo") == ["ssh://demo"]


@pytest.mark.parametrize("command", ["set", "tune", "capture"])
def test_commands_take_hosts_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--host", "ftp://x"]) == 2
    assert "there is no ftp://" in capsys.readouterr().err


def test_none_that_can_be_reached_is_a_line_for_each_and_status_1() -> None:
    done = overlaptop("--once", "--via", "/no/such/program", "--via", fake_relay("failing"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "via /no/such/program: there is no /no/such/program on this machine" in done.stderr
    assert "/tmp/x belongs to uid 7, not to you" in done.stderr
    assert done.stderr.splitlines()[-1] == "overlaptop: none of 2 hosts can be reached"
    assert done.stderr.count("\n") == 3


@pytest.mark.parametrize(
    ("word", "meant"), [("list", "--list"), ("status", "--once"), ("captur", "capture"), ("gpu-7", "")]
)
def test_a_word_that_no_host_has_may_have_been_meant_for_a_command(
    word: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\necho 'ssh: Could not resolve hostname that: Name or service not known' >&2\nexit 255\n"
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("OVERLAPTOP_SSH", str(ssh))
    done = overlaptop("--once", word)
    first, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert first.startswith(f"overlaptop: {word}: no address is known for that: ")
    hint = f"; did you mean: overlaptop {meant}" if meant else ""
    assert last == f"overlaptop: the host cannot be reached{hint}"


def test_a_host_of_such_a_name_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nexec {fake_relay('plain')}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("OVERLAPTOP_SSH", str(ssh))
    done = overlaptop("--list", "status")
    assert (done.returncode, "did you mean" in done.stderr) == (0, False)
    assert "train.py" in done.stdout


def test_a_host_that_fails_is_told_and_the_others_go_on() -> None:
    plain = fake_relay("plain")
    done = overlaptop("--list", "--json", "--via", "/no/such/program", "--via", plain)
    assert done.returncode == 0
    (job,) = map(json.loads, done.stdout.splitlines())
    assert (job["job"], job["script"], job["host"]) == ("job-1", "train.py", f"via {plain}")
    assert "there is no /no/such/program" in done.stderr
    assert "connected (overlaptop 1.2.3 on far-host)" in done.stderr


def test_a_job_that_none_of_them_has_is_one_line_and_status_1() -> None:
    done = overlaptop("--once", "--job", "job-2", "--via", fake_relay("plain"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "overlaptop: no job job-2 runs there; there is: job-1 (train.py)"


def test_the_table_is_of_the_job_there() -> None:
    done = overlaptop("--once", "--via", fake_relay("plain"))
    assert done.returncode == 0
    assert "train.py · 2 ranks · far" in done.stdout
    assert "job job-1" in done.stdout


def test_this_machine_is_reached_as_another_one_is(socket_dir: Path) -> None:
    done = overlaptop("--once", "local://", "--python", sys.executable)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("overlaptop: no job with an agent runs there; ")


def test_what_may_be_sent_is_told_to_the_host_and_nothing_outlives_the_session() -> None:
    session = connect(Hosts((Target.via(fake_relay("plain")),), bytes_per_s=20_000))
    try:
        (host,) = session.hosts
        (job,) = session.find_jobs()
        assert (job.job, job.host) == ("job-1", host.name)
        for _ in range(200):
            session.pause(0.01)
            session.tick()
            if host.note == "limit 20000 0.0":
                break
        assert host.note == "limit 20000 0.0"
        pids = [process.pid for process in host.connection.processes]
    finally:
        session.close()
    assert session.tick() is not None
    assert pids
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def children_of(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def words_of_process(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_ctrl_c_while_they_are_reached_leaves_no_process() -> None:
    """A host that never answers: what was started for it is gone with us."""
    process = subprocess.Popen(
        [sys.executable, "-m", "overlaptop", "--once", "--via", fake_relay("mute")],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert wait_until(lambda: any("mute" in words_of_process(pid) for pid in children_of(process.pid)))
    found = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert wait_until(lambda: not any(map(runs, found)))


def test_a_bad_interpreter_s_name_is_refused_before_anything_is_started() -> None:
    with pytest.raises(CommandError, match="cannot begin with a dash") as fault:
        connect(Hosts((Target.parse("gpu-a"),), python="-c"))
    assert fault.value.status == 2


# What is printed of a job on several hosts


def test_the_table_has_a_line_for_each_host_and_says_which_ranks_are_out_of_reach() -> None:
    cluster = Cluster("gpu-a", "gpu-b")
    session = cluster.live()
    cluster.host("gpu-b").cut("the line broke")
    cluster.clock.pass_s(12)
    page = render(session.tick(), ascii_only=True)
    assert page.isascii()
    states = [line.split("  ")[-1] for line in page.splitlines() if line.lstrip()[:1].isdigit()]
    assert states[2:4] == ["out of reach"] * 2
    assert "gpu-b  o lost since" in page
    assert "(12 s)  the line broke  ranks 2-3" in page


def test_steps_that_are_long_over_are_not_taken_for_the_newest_ones_of_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlaptop.console.following.LIMIT_S", 0.1)
    cluster = Cluster("gpu-a")
    session = cluster.live()
    assert settle(session).ranks[0].last.step == 39
    cluster.clock.pass_s(100)
    host = cluster.host("gpu-a")
    host.link.say(welcome(world_size=2))  # the line has come back, and its history comes anew
    ticks = 0

    def poll() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 3:
            host.link.say(*(step(rank, 1290) for rank in (0, 1)), status())

    monkeypatch.setattr(host, "poll", poll)
    assert settle(session).ranks[0].last.step == 1290


def test_while_records_are_printed_it_is_said_which_host_is_lost_and_when_it_is_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = Cluster("gpu-a", "gpu-b")
    session = cluster.live()
    teller = ConnectionReporter()
    teller.tell(session.tick())
    cluster.host("gpu-b").cut("the line broke")
    for _ in range(3):
        teller.tell(session.tick())
    cluster.host("gpu-b").connect()
    teller.tell(session.tick())
    assert capsys.readouterr().err.splitlines() == [
        "overlaptop: gpu-b: lost: the line broke",
        "overlaptop: gpu-b: back",
    ]


def test_a_line_to_another_host_is_given_time_to_come_back() -> None:
    cluster = Cluster("gpu-a")
    session = cluster.live()
    cluster.host("gpu-a").cut()
    cluster.clock.pass_s(60)
    assert not is_lost(session.tick())
    cluster.clock.pass_s(100)
    assert is_lost(session.tick())
