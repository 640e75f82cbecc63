"""The start script in the shells that hosts have, with interpreters and directories of the tests' own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from overlaptop.remote.bootstrap import SCRIPT, remote_command, shell_line
from overlaptop.wire.endpoints import JobRecord, job_dir, write_job

SHELLS = [
    shell
    for shell in (["dash"], ["bash", "--posix"], ["bash"], ["busybox", "sh"], ["ksh"], ["mksh"], ["zsh"])
    if shutil.which(shell[0])
]
LOGIN_SHELLS = [shell for shell in ("sh", "bash", "fish", "csh", "tcsh", "zsh") if shutil.which(shell)]

RECORD = JobRecord(
    protocol=4,
    job="job-1",
    script='", "python": "/bin/false',
    cwd='/w\n "python": "/bin/false",',
    host="far",
    world_size=1,
    python="",
    starter_pid=1,
    starter_start_ticks=None,
    hub_pid=1,
    hub_start_ticks=1,
    started_ns=1,
    dashboard_socket="dash-1.sock",
    rank_pids=(1, 2),
)


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    return request.param


@pytest.fixture(autouse=True)
def no_overlaptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's python3 could import."""
    folder = tmp_path / "first on the PATH"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\nexit 1\n")
    (folder / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.fixture
def socket_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "it's a $dir; with *"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(path))
    return path


@pytest.fixture
def make_python(tmp_path: Path) -> Callable[[str], Path]:
    """Interpreters that say how they were called, and end."""

    def make(name: str) -> Path:
        path = tmp_path / name
        path.write_text('#!/bin/sh\necho "$0|$*|$PYTHONPATH|$OVERLAPTOP_DIR|$(cat)"\n')
        path.chmod(0o755)
        return path

    return make


def write(key: str, age_s: int, **fields: object) -> None:
    job_dir(key, create=True)
    write_job(replace(RECORD, job=key, **fields))
    path = job_dir(key) / "job.json"
    os.utime(path, (1_000_000 - age_s, 1_000_000 - age_s))


class Run:
    """What a run of the script has printed."""

    def __init__(self, command: Sequence[str], written: str, **environment: str) -> None:
        done = subprocess.run(
            command,
            input=written,
            capture_output=True,
            text=True,
            timeout=20,
            env={**os.environ, **environment},
            check=False,
        )
        self.status, self.errors = done.returncode, done.stderr
        self.notes = re.findall(r"^OVERLAPTOP-NOTE (\w+) ?(.*)$", done.stdout, re.MULTILINE)
        self.last = done.stdout.splitlines()[-1]


def run(
    shell: list[str], python: str = "", remote_dir: str = "", written: str = "", **environment: str
) -> Run:
    return Run([*shell, *remote_command(python, remote_dir)[1:]], written, **environment)


def test_the_script_passes_through_any_login_shell_as_one_word() -> None:
    assert not re.search(r"['!\n]|\\\\", SCRIPT)
    assert SCRIPT.isprintable()


@pytest.mark.parametrize("login_shell", LOGIN_SHELLS)
def test_a_login_shell_hands_it_on_untouched(
    login_shell: str, socket_dir: Path, make_python: Callable[[str], Path]
) -> None:
    python = make_python("python")
    line = shell_line(remote_command(str(python), "/tmp/a b/$x"))
    done = Run([login_shell, "-c", line], "frames")
    assert done.notes == [("here", ""), ("start", str(python))]
    assert done.last == f"{python}|-P -m overlaptop relay --stdio||/tmp/a b/$x|frames"


def test_the_newest_jobs_interpreter_and_folders_are_taken(
    shell: list[str], socket_dir: Path, make_python: Callable[[str], Path]
) -> None:
    new, old = make_python("new python"), make_python("old")
    write("old", 50, python=str(old), import_path=("/old",))
    write("new", 10, python=str(new), import_path=("/a b", "/c"))
    done = run(shell, written="frames")
    assert done.notes == [("here", ""), ("start", str(new))]
    assert done.last == f"{new}|-P -m overlaptop relay --stdio|/a b:/c|{socket_dir}|frames"
    assert done.errors == ""


def test_a_job_whose_interpreter_is_gone_is_passed_over(
    shell: list[str], socket_dir: Path, make_python: Callable[[str], Path]
) -> None:
    python = make_python("python")
    write("old", 50, python=str(python))
    write("gone", 20, python="/nowhere/python")
    write("relative", 15, python="sh")
    (socket_dir / "empty").mkdir()
    (socket_dir / "broken").mkdir()
    (socket_dir / "broken" / "job.json").write_bytes(b"\xff\x00{]\n" * 100)
    done = run(shell, written="x", PYTHONPATH="/mine")
    assert done.notes == [("here", ""), ("start", str(python))]
    assert done.last.split("|")[2] == "/mine"


def test_the_users_interpreter_comes_before_the_jobs(
    shell: list[str], socket_dir: Path, make_python: Callable[[str], Path]
) -> None:
    python = make_python("python")
    write("job-1", 0, python=str(make_python("other")))
    assert run(shell, python=str(python)).notes[-1] == ("start", str(python))
    home = run(shell, python="~/python", HOME=str(python.parent))
    assert home.last.startswith(f"{python}|-P")
    missing = run(shell, python="/nowhere/python")
    assert missing.notes[-1] == ("fail", "there is no /nowhere/python to be run: look at --python")
    assert missing.status == 1


@pytest.mark.parametrize("exists", [True, False])
def test_without_a_job_it_looks_again_for_each_line_and_ends_with_its_input(
    shell: list[str], socket_dir: Path, exists: bool
) -> None:
    if not exists:
        socket_dir.rmdir()
    done = run(shell, written="\n\n")
    assert [kind for kind, _ in done.notes] == ["here", "wait", "wait", "wait"]
    assert done.notes[1][1].startswith(f"no job in {socket_dir}")
    assert done.status == 0
    assert done.errors == ""


def test_a_job_that_begins_later_is_found_and_no_byte_of_its_frames_is_eaten(
    shell: list[str], socket_dir: Path, make_python: Callable[[str], Path]
) -> None:
    python = make_python("python")
    command = [*shell, *remote_command()[1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as relay:
        assert relay.stdin is not None
        assert relay.stdout is not None
        while b"NOTE wait" not in relay.stdout.readline():
            pass
        write("job-1", 0, python=str(python))
        relay.stdin.write(b"\nframes, and not one newline before them")
        relay.stdin.close()
        rest = relay.stdout.read().decode()
    assert rest.splitlines()[-1].endswith("|frames, and not one newline before them")


def test_an_overlaptop_on_the_path_is_used_where_there_is_no_job(
    shell: list[str], socket_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    python3 = folder / "python3"
    python3.write_text('#!/bin/sh\n[ "$2" = -c ] || echo "$*"\n')
    python3.chmod(0o755)
    done = run(shell, PATH=f"{folder}:/usr/bin:/bin")
    assert done.notes == [("here", ""), ("start", "python3")]
    assert done.last == "-P -m overlaptop relay --stdio"


def test_a_relay_that_may_change_nothing_is_told_so(
    shell: list[str], make_python: Callable[[str], Path]
) -> None:
    python = make_python("python")
    done = Run([*shell, *remote_command(str(python), "/x", readonly=True)[1:]], "")
    assert done.last.split("|")[1] == "-P -m overlaptop relay --stdio --readonly"


def make_open(path: Path) -> None:
    path.chmod(0o750)


def make_link(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def make_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a directory to another user")
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (make_open, "has mode drwxr-x---, others can get in: run chmod 700 there, or use --remote-dir"),
        (make_link, "is a symbolic link: remove it, or name another directory with --remote-dir"),
        (make_file, "cannot be used as the socket directory: name another with --remote-dir"),
        (give_away, "belongs to uid 65534, not to you: name another with --remote-dir"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nothing_is_run_from_a_directory_that_others_could_have_made(
    shell: list[str],
    socket_dir: Path,
    make_python: Callable[[str], Path],
    spoil: Callable[[Path], None],
    why: str,
) -> None:
    write("job-1", 0, python=str(make_python("python")))
    spoil(socket_dir)
    for named in ("", "python3"):
        done = run(shell, python=named, written="\n")
        assert done.notes == [("here", ""), ("fail", f"{socket_dir} {why}")]
        assert done.status == 1


def test_a_directory_may_have_the_bits_that_its_parent_gives_on(
    shell: list[str], socket_dir: Path, make_python: Callable[[str], Path]
) -> None:
    python = make_python("python")
    write("job-1", 0, python=str(python))
    socket_dir.chmod(0o3700)
    assert run(shell).notes[-1] == ("start", str(python))


def test_the_directory_is_the_one_named_or_the_default_of_the_host(
    shell: list[str], tmp_path: Path
) -> None:
    def where(**environment: str) -> str:
        return re.sub(", and no overlaptop.*", "", run(shell, **environment).notes[1][1])

    named = {"OVERLAPTOP_DIR": ""}
    assert where(**named, TMPDIR=str(tmp_path)) == f"no job in {tmp_path}/overlaptop-{os.geteuid()}"
    assert where(remote_dir="/x/y") == "no job in /x/y"
    assert where(remote_dir="~/y", HOME="/home/me") == "no job in /home/me/y"
    assert where(OVERLAPTOP_DIR="z") == f"no job in {Path.cwd()}/z"


@pytest.mark.parametrize("word", ["it's", "a\\b", "a!b", "a\nb", "-x"])
def test_names_that_a_shell_would_not_take_as_they_are_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"--python|--remote-dir"):
        remote_command(word)
    with pytest.raises(ValueError, match=r"--remote-dir"):
        remote_command("", word)


@pytest.mark.parametrize("word", ["it's", "a\\\\b", "a!b", "a\nb"])
def test_no_word_is_quoted_that_a_shell_would_take_apart(word: str) -> None:
    with pytest.raises(ValueError, match="not every shell"):
        shell_line(("sh", word))
