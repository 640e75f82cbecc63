"""What users call a host, and the command that reaches it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.remote.bootstrap import remote_command
from overlaptop.remote.targets import MAX_TARGETS, Target, named

WORDS = ("sh", "-c", "echo $1", "name", "", "/a b")
SRUN = ("--quiet", "--unbuffered", "--overlap", "--nodes=1", "--ntasks=1")
LINE = "sh -c 'echo $1' name '' '/a b'"


def argv(word: str) -> list[str]:
    return Target.parse(word).argv(WORDS)


@pytest.mark.parametrize(
    ("word", "port", "place"),
    [
        ("gpu-a", None, "gpu-a"),
        ("me@gpu-a.example.org", None, "me@gpu-a.example.org"),
        ("10.0.0.7", None, "10.0.0.7"),
        ("::1", None, "::1"),
        ("me@fe80::1%eth0", None, "me@fe80::1%eth0"),
        (r"CORP\me@gpu-a", None, r"CORP\me@gpu-a"),
        ("ssh://gpu-a", None, "gpu-a"),
        ("ssh://me@gpu-a:2222", "2222", "me@gpu-a"),
        ("ssh://me@[::1]:22/", "22", "me@::1"),
    ],
)
def test_a_host_is_reached_by_the_users_own_ssh(word: str, port: str | None, place: str) -> None:
    command = argv(word)
    assert command[0] == "ssh"
    assert command[-3:] == ["--", place, LINE]
    assert ("-p" in command) == (port is not None)
    if port is not None:
        assert command[command.index("-p") + 1] == port


def test_ssh_asks_nothing_unless_it_may_and_notices_a_frozen_line() -> None:
    target = Target.parse("gpu-a")
    assert "BatchMode=yes" in target.argv(WORDS)
    assert "BatchMode=no" in target.argv(WORDS, interactive=True)
    for option in ("ConnectTimeout=10", "ServerAliveInterval=3", "ServerAliveCountMax=2"):
        assert option in target.argv(WORDS)


def test_real_ssh_takes_the_options(tmp_path: Path) -> None:
    command = Target.parse("ssh://me@gpu-a:2222").argv(WORDS)
    done = subprocess.run([command[0], "-G", *command[1:-1]], capture_output=True, text=True, check=True)
    said = set(done.stdout.splitlines())
    assert {"port 2222", "user me", "batchmode yes", "serveraliveinterval 3", "forwardagent no"} <= said


def test_another_ssh_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPTOP_SSH", "/opt/bin/ssh")
    assert argv("gpu-a")[0] == "/opt/bin/ssh"


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("docker://trainer", ["docker", "exec", "-i", "trainer"]),
        ("kubectl://pod-0", ["kubectl", "exec", "-i", "pod-0", "--"]),
        ("kubectl://ml/pod-0", ["kubectl", "exec", "-i", "-n", "ml", "pod-0", "--"]),
        ("kubectl://ml/pod-0/main", ["kubectl", "exec", "-i", "-n", "ml", "pod-0", "-c", "main", "--"]),
        ("srun://1234", ["srun", "--jobid=1234", *SRUN]),
        ("srun://12_3/n01", ["srun", "--jobid=12_3", *SRUN, "--nodelist=n01"]),
        ("local://", []),
    ],
)
def test_containers_pods_and_nodes_are_reached_by_their_own_commands(word: str, command: list[str]) -> None:
    assert argv(word) == [*command, *WORDS]


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("sudo -u 'the trainer'", ["sudo", "-u", "the trainer", *WORDS]),
        ("ssh -J jump gpu-a", ["ssh", "-J", "jump", "gpu-a", LINE]),
        ("gcloud compute ssh vm --command={}", ["gcloud", "compute", "ssh", "vm", f"--command={LINE}"]),
    ],
)
def test_anything_else_is_reached_by_a_command_prefix(prefix: str, command: list[str]) -> None:
    assert Target.via(prefix).argv(WORDS) == command


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("-oProxyCommand=touch /tmp/x", "begins with a dash"),
        ("ssh://-oProxyCommand=x", "write ssh://"),
        ("me@-x", "names no host"),
        ("docker://-x", "write docker://CONTAINER"),
        ("kubectl://a/b/c/d", "write kubectl://"),
        ("kubectl://a/", "write kubectl://"),
        ("srun://job", "named by its number"),
        ("srun://1/-w", "write srun://"),
        ("local://here", "nothing after it"),
        ("http://gpu-a", "there is no http://"),
        ("gpu-a:2222", "ssh://gpu-a:2222"),
        ("ssh://gpu-a:0", "from 1 to 65535"),
        ("ssh://gpu-a:99999", "from 1 to 65535"),
        ("gpu a", "names no host"),
        ("gpu-a;reboot", "names no host"),
        ("$(reboot)", "names no host"),
        ("", "names no host"),
        ("a\x1b[2J", "names no host"),
        ("x" * 600, "names no host"),
    ],
)
def test_what_names_no_host_is_refused_in_one_line(word: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("[", r"\[")) as error:
        Target.parse(word)
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()


@given(st.text(max_size=40) | st.text("ab-@:/[]. %\\", max_size=20))
def test_no_word_becomes_an_option_of_a_command(word: str) -> None:
    try:
        command = Target.parse(word).argv(WORDS)
    except ValueError:
        return
    fixed = {"-T", "-e", "-a", "-x", "-o", "-p", "-i", "-n", "-c", "--"}
    options = [each for each in command[: -len(WORDS)] if each.startswith("-")]
    assert all(each in fixed or each.startswith(("--jobid=", "--quiet", "--o", "--n")) for each in options)


@pytest.mark.parametrize("prefix", ["", "  ", "'", "''"])
def test_a_prefix_without_a_command_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="--via"):
        Target.via(prefix)


def test_a_file_names_many_hosts_and_none_twice(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# mine\ngpu-a\n\n  me@gpu-b  # the second\ndocker://trainer\ngpu-a\n")
    found = named(["gpu-b", "gpu-a"], hosts, ["sudo -u x"])
    assert [target.word for target in found] == [
        *("gpu-b", "gpu-a", "me@gpu-b", "docker://trainer", "via sudo -u x"),
    ]


def test_a_files_faults_are_named_with_their_line(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu-a\n-oProxyCommand=x\n")
    with pytest.raises(ValueError, match=r"hosts, line 2: .*dash"):
        named([], hosts)
    hosts.write_text("# none\n")
    with pytest.raises(ValueError, match="names no host"):
        named([], hosts)
    with pytest.raises(OSError):  # noqa: PT011 # whichever
        named([], tmp_path / "none")
    hosts.write_bytes(b"a\n" * (1 << 20))
    with pytest.raises(ValueError, match="longer than"):
        named([], hosts)


def test_too_many_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_TARGETS}"):
        named([f"gpu-{number}" for number in range(MAX_TARGETS + 1)])


def test_a_slurm_job_names_its_nodes() -> None:
    asked = []

    def run(command: list[str]) -> str:
        asked.append(command)
        return "n[01-02]\n" if command[0] == "squeue" else "n01\nn02\n"

    found = named(["slurm:77"], run=run)
    assert [target.word for target in found] == ["srun://77/n01", "srun://77/n02"]
    assert asked[1] == ["scontrol", "show", "hostnames", "n[01-02]"]


def test_a_slurm_job_without_nodes_or_a_number_is_said_so() -> None:
    with pytest.raises(ValueError, match="no nodes"):
        named(["slurm:77"], run=lambda _: "\n")
    with pytest.raises(ValueError, match="by its number"):
        named(["slurm:--x"], run=lambda _: "n01")


def test_where_there_is_no_slurm_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no squeue here"):
        named(["slurm:77"])
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n")
    squeue.chmod(0o755)
    with pytest.raises(ValueError, match="status 1: slurm_load_jobs error"):
        named(["slurm:77"])


def test_what_travels_is_what_was_given() -> None:
    assert remote_command("/opt/py", "/d")[-3:] == ("/d", "/opt/py", "")
