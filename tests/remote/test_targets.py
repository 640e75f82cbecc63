"""What users call a host, and the command that reaches it."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.remote import failures
from overlaptop.remote.failures import PERSON, RETRY, TERMINAL
from overlaptop.remote.targets import MAX_TARGETS, Target, named

WORDS = ("sh", "-c", "echo $1", "name", "", "/a b")
SRUN = "--quiet --unbuffered --overlap --nodes=1 --ntasks=1"
LINE = "sh -c 'echo $1' name '' '/a b'"


def target(word):
    prefix = word.removeprefix("via ")
    return Target.parse(word) if prefix == word else Target.via(prefix)


def argv(word):
    return target(word).argv(WORDS)


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("me@gpu-a.example.org", ["--", "me@gpu-a.example.org"]),
        ("me@fe80::1%eth0", ["--", "me@fe80::1%eth0"]),
        (r"CORP\me@gpu-a", ["--", r"CORP\me@gpu-a"]),
        ("ssh://me@[::1]:22/", ["-p", "22", "--", "me@::1"]),
    ],
)
def test_a_host_is_reached_by_the_users_own_ssh(word, command):
    asking_nothing = argv(word)
    assert asking_nothing[0] == "ssh"
    assert asking_nothing[-len(command) - 2 :] == ["BatchMode=yes", *command, LINE]
    assert "BatchMode=no" in Target.parse(word).argv(WORDS, interactive=True)


def test_real_ssh_takes_the_options():
    command = argv("ssh://me@gpu-a:2222")
    done = subprocess.run([command[0], "-G", *command[1:-1]], capture_output=True, text=True, check=True)
    assert {
        "port 2222", "user me", "batchmode yes", "forwardagent no", "connecttimeout 10",
        "serveraliveinterval 3", "serveralivecountmax 2",
    } <= set(done.stdout.splitlines())  # fmt: skip


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("docker://trainer", "docker exec -i trainer"),
        ("kubectl://pod-0", "kubectl exec -i pod-0 --"),
        ("kubectl://ml/pod-0/main", "kubectl exec -i -n ml pod-0 -c main --"),
        ("srun://1234", f"srun --jobid=1234 {SRUN}"),
        ("srun://12_3/n01", f"srun --jobid=12_3 {SRUN} --nodelist=n01"),
        ("local://", ""),
        ("via sudo -u 'the trainer'", "sudo -u 'the trainer'"),
    ],
)
def test_other_targets_use_their_own_command_or_a_prefix(word, command):
    assert target(word).argv(WORDS) == [*shlex.split(command), *WORDS]


def test_words_become_a_line_for_a_prefix_with_a_shell_behind_it():
    assert target("via ssh -J jump gpu-a").argv(WORDS) == ["ssh", "-J", "jump", "gpu-a", LINE]
    assert target("via gcloud ssh --command={}").argv(WORDS) == ["gcloud", "ssh", f"--command={LINE}"]


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("-oProxyCommand=touch /tmp/x", "begins with a dash"),
        ("ssh://me@-x", "write ssh://"),
        ("me@-x", "names no host"),
        ("docker://-x", "write docker://CONTAINER"),
        ("srun://1/-w", "write srun://"),
        ("local://here", "write local://"),
        ("http://gpu-a", "there is no http://"),
        ("gpu-a:2222", "ssh://gpu-a:2222"),
        ("ssh://gpu-a:99999", "write ssh://"),
        ("gpu-a;reboot", "names no host"),
        ("", "names no host"),
        ("a\x1b[2J", "names no host"),
    ],
)
def test_what_names_no_host_is_refused_in_one_line(word, why):
    with pytest.raises(ValueError, match=why.replace("[", r"\[")) as error:
        Target.parse(word)
    assert str(error.value).isprintable()


@given(st.text(max_size=40) | st.text("ab-@:/[]. %\\", max_size=20))
def test_no_word_becomes_an_option_of_a_command(word):
    try:
        command = Target.parse(word).argv(WORDS)
    except ValueError:
        return
    fixed = {"-T", "-e", "-a", "-x", "-o", "-p", "-i", "-n", "-c", "--"}
    options = [each for each in command[: -len(WORDS)] if each.startswith("-")]
    assert all(each in fixed or each.startswith(("--jobid=", "--quiet", "--o", "--n")) for each in options)


@pytest.mark.parametrize("prefix", ["", "  ", "'", "''"])
def test_a_prefix_without_a_command_is_refused(prefix):
    with pytest.raises(ValueError, match="--via"):
        Target.via(prefix)


def test_a_file_names_many_hosts_and_none_twice(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# mine\ngpu-a\n\n  me@gpu-b  # the second\ndocker://trainer\ngpu-a\n")
    found = named(["gpu-b", "gpu-a"], hosts, ["sudo -u x"])
    names = "gpu-b", "gpu-a", "me@gpu-b", "docker://trainer", "via sudo -u x"
    assert [target.name for target in found] == [*names]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["gpu-a", "-oProxyCommand=x"], r"hosts, line 2: .*dash"),
        (["# none"], "names no host"),
        ([f"gpu-{number}" for number in range(MAX_TARGETS + 1)], f"at most {MAX_TARGETS}"),
    ],
    ids=["a fault", "none", "too many"],
)
def test_a_file_of_hosts_that_cannot_be_used_says_why(tmp_path, lines, why):
    hosts = tmp_path / "hosts"
    hosts.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=why):
        named([], hosts)


def test_a_slurm_job_names_its_nodes(monkeypatch, tmp_path):
    def program(name, body):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def refused(word, why):
        with pytest.raises(ValueError, match=why):
            named([word])

    monkeypatch.setenv("PATH", str(tmp_path))
    refused("slurm:77", "no squeue here")
    refused("slurm:--x", "by its number")
    program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    refused("slurm:77", "status 1: slurm_load_jobs error")
    program("squeue", "echo")
    refused("slurm:77", "no nodes")
    program("squeue", "echo 'n[01-02]'")
    program("scontrol", '[ "$*" = "show hostnames n[01-02]" ] && echo n01 && echo n02')
    assert [target.name for target in named(["slurm:77"])] == ["srun://77/n01", "srun://77/n02"]


CHANGED = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
UNKNOWN = "Host key verification failed."
REFUSED = "ssh: connect to host gpu-a port 2222: Connection refused"


# What was written, what may help, a part of the reason.
@pytest.mark.parametrize(("kind", "written", "remedy", "reason"), [
    ("ssh", UNKNOWN, TERMINAL, "its host key is not known here: connect once with ssh gpu-a and confirm"),
    ("ssh", CHANGED + UNKNOWN, PERSON, "if that is as it should be, ssh-keygen -R gpu-a"),
    ("ssh", "me@gpu-a: Permission denied (publickey,password).", TERMINAL,
     "Permission denied (publickey,password): ssh-add the key, or put it there with ssh-copy-id gpu-a"),
    ("ssh", "@ WARNING: UNPROTECTED PRIVATE KEY FILE!\nPermission denied (publickey).", TERMINAL,
     "others can read the private key, so ssh does not use it: chmod 600 the key"),
    ("ssh", f"hello\n{REFUSED}\r\n", RETRY, REFUSED),
    ("ssh", "hello\n/home/me/.ssh/config: line 3: Bad configuration option: foo\r\n"
     "/home/me/.ssh/config: terminating, 1 bad configuration options", PERSON,
     "ssh does not start: /home/me/.ssh/config: line 3: Bad configuration option: foo"),
    ("via", "hello\nsudo: a password is required\n", TERMINAL, "sudo asks for a password"),
    ("docker", "hello\n/opt/venv/bin/python: No module named overlaptop.__main__\n", RETRY,
     "/opt/venv/bin/python: No module named overlaptop: pip install it there, or name another Python"),
    ("docker", "\x1b[2Jsomething\nnew\x07", RETRY, "it ended with status 255: new?"),
    ("ssh", "", RETRY, "it ended with status 255"),
])  # fmt: skip
def test_what_was_written_becomes_one_line_with_a_remedy(kind, written, remedy, reason):
    failure = failures.of_ending(kind, "gpu-a", 255, written, "")
    assert reason in failure.reason
    assert (failure.lasting, failure.needs_terminal) == (remedy != RETRY, remedy == TERMINAL)
    assert failure.reason.isprintable()
