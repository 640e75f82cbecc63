"""The start script in the shells that hosts have, with interpreters and directories of the tests' own."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.record import write_job
from overlaptop.remote.bootstrap import SCRIPT, remote_command
from tests.fleet.fakes import record

SHELLS = [
    shell
    for shell in (["dash"], ["bash", "--posix"], ["bash"], ["busybox", "sh"], ["ksh"], ["mksh"], ["zsh"])
    if shutil.which(shell[0])
]
LOGIN_SHELLS = [shell for shell in ("sh", "bash", "fish", "csh", "tcsh", "zsh") if shutil.which(shell)]

RECORD = record(script='", "python": "/bin/false', cwd='/w\n "python": "/bin/false",', python="")


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request):
    return request.param


def executable(path, body):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def no_overlaptop(tmp_path, monkeypatch):
    """Whatever this machine's python3 could import."""
    python3 = executable(tmp_path / "first on the PATH" / "python3", "exit 1")
    monkeypatch.setenv("PATH", f"{python3.parent}:/usr/bin:/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture
def socket_dir(tmp_path, monkeypatch):
    path = tmp_path / "it's a $dir; with *"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(path))
    return path


@pytest.fixture
def python(tmp_path):
    """An interpreter that says how it was called, and ends."""
    return executable(tmp_path / "a python", 'echo "$0|$*|$PYTHONPATH|$OVERLAPTOP_DIR|$(cat)"')


def write(key, age_s, **fields):
    job_dir(key, create=True)
    write_job(replace(RECORD, job=key, **fields))
    path = job_dir(key) / "job.json"
    os.utime(path, (1_000_000 - age_s, 1_000_000 - age_s))


class Run:
    """What a run of the script has printed."""

    def __init__(self, command, written="", **environment):
        done = subprocess.run(
            command, input=written, capture_output=True, text=True, errors="replace", timeout=60,
            env={**os.environ, **environment}, check=False,
        )  # fmt: skip
        self.status, self.errors = done.returncode, done.stderr
        self.notes = re.findall(r"^OVERLAPTOP-NOTE (\w+) ?(.*)$", done.stdout, re.MULTILINE)
        self.last = done.stdout.splitlines()[-1]


def run(shell, python="", remote_dir="", written="", **environment):
    return Run([*shell, *remote_command(python, remote_dir)[1:]], written, **environment)


@pytest.mark.parametrize("login_shell", LOGIN_SHELLS)
def test_it_passes_through_any_login_shell_as_one_word(login_shell, python):
    assert SCRIPT.isprintable()
    assert not re.search(r"['!\n]|\\\\", SCRIPT)
    line = shlex.join(remote_command(str(python), "/tmp/a b/$x", readonly=True))
    done = Run([login_shell, "-c", line], "frames")
    assert done.notes == [("here", ""), ("start", str(python))]
    assert done.last == f"{python}|-P -m overlaptop relay --stdio --readonly||/tmp/a b/$x|frames"


def test_newest_job_s_interpreter_is_used_despite_broken_records(shell, socket_dir, python):
    write("old", 50, python="/bin/true", import_path=("/old",))
    write("new", 30, python=str(python), import_path=("/a b", "/c"))
    for age_s, other in enumerate(("/nowhere/python", "sh", "/a\nb", "/a\udce9"), 1):
        write(f"wrong-{age_s}", age_s, python=other)
    (socket_dir / "broken").mkdir()
    (socket_dir / "broken" / "job.json").write_bytes(b"\xff\x00{]\n" * 100)
    done = run(shell, written="frames")
    assert done.notes == [("here", ""), ("start", str(python))]
    assert done.last == f"{python}|-P -m overlaptop relay --stdio|/a b:/c|{socket_dir}|frames"
    assert done.errors == ""
    named = executable(socket_dir / 'Zo\u00eb "a" b\\c' / "python", "echo found")
    write("named", 0, python=str(named))
    assert run(shell).last == "found"


def test_the_users_interpreter_comes_before_the_jobs(shell, socket_dir, python):
    write("job-1", 0, python="/bin/true")
    assert run(shell, python=str(python)).notes[-1] == ("start", str(python))
    missing = run(shell, python="/nowhere/python")
    assert missing.notes[-1] == ("fail", "there is no /nowhere/python to be run: look at --python")
    assert missing.status == 1


def test_later_job_is_found_and_no_byte_of_its_frames_is_lost(shell, socket_dir, python):
    command = [*shell, *remote_command()[1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as relay:
        for line in (b"\n", b"\nframes, and not one newline before them"):
            while b"NOTE wait" not in relay.stdout.readline():
                pass
            if line != b"\n":
                write("job-1", 0, python=str(python))
            relay.stdin.write(line)
        relay.stdin.close()
        rest = relay.stdout.read().decode()
    assert rest.splitlines()[-1].endswith("|frames, and not one newline before them")


@pytest.mark.parametrize("python", ["", sys.executable], ids=["the one on the PATH", "named"])
def test_nothing_is_imported_from_the_login_directory(socket_dir, tmp_path, monkeypatch, python):
    (tmp_path / "overlaptop").mkdir()
    for name in ("overlaptop/__init__.py", "sitecustomize.py", "msgpack.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    done = run(["sh"], python, PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert done.notes == [("here", ""), ("start", python or "python3")]
    assert (done.status, done.errors) == (0, "")


def make_link(path):
    path.symlink_to(path.rename(path.with_name("target")))


def open_up(path):
    path.chmod(0o750)


def give_away(path):
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(path, 54_321, -1)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (open_up, "has mode drwxr-x---, others can get in: run chmod 700 there, or use"),
        (make_link, "is a symbolic link: remove it, or name another directory with"),
        (give_away, "belongs to uid 54321, not to you: name another with"),
    ],
)
def test_nothing_runs_from_a_directory_that_others_may_have_made(shell, socket_dir, python, spoil, why):
    write("job-1", 0, python=str(python))
    socket_dir.chmod(0o3700)  # bits that its parent may give on do no harm
    assert run(shell).notes[-1] == ("start", str(python))
    spoil(socket_dir)
    done = run(shell, written="\n")
    assert (done.status, done.notes) == (1, [("here", ""), ("fail", f"{socket_dir} {why} --remote-dir")])


def test_directory_is_the_named_one_or_the_host_s_default(shell, tmp_path):
    def where(**environment):
        return re.sub(", and no overlaptop.*", "", run(shell, **environment).notes[1][1])

    default = where(OVERLAPTOP_DIR="", TMPDIR=str(tmp_path))
    assert default == f"no job in {tmp_path}/overlaptop-{os.geteuid()}"
    assert where(remote_dir="/x/y") == "no job in /x/y"
    assert where(remote_dir="~/y", HOME="/home/me") == "no job in /home/me/y"
    assert where(OVERLAPTOP_DIR="z") == f"no job in {Path.cwd()}/z"


@pytest.mark.parametrize("word", ["it's", "a\\\\b", "a!b", "a\nb", "-x"])
def test_names_that_a_shell_would_change_are_refused(word):
    with pytest.raises(ValueError, match="--python"):
        remote_command(word)
    with pytest.raises(ValueError, match="--remote-dir"):
        remote_command("", word)
