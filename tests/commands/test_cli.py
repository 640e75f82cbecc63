"""What all commands have in common: what they import, how they refuse, and what they do without a job."""

import errno
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from overlaptop import __version__, cli
from overlaptop.commands import COMMANDS, dashboard
from overlaptop.jobs.gather_key import key_path, read_key
from overlaptop.wire.commands import make_setting, make_trial
from tests.fleet.builders import BUCKET_CAP_MB
from tests.formats.traces import DATA

from .running import OVERLAPTOP, PAGES, Terminal, check_page, overlaptop, run_code, run_here

HEAVY = {"torch", "textual", "zmq", "numpy", "msgpack", "rich"}


def test_help_of_every_command_imports_neither_torch_nor_textual():
    code = (
        "from overlaptop.cli import main\n"
        "for words in (['--help'], *([name, '--help'] for name in sys.argv[1:])):\n"
        "    try:\n        main(words)\n"
        "    except SystemExit as end:\n        assert end.code == 0"
    )
    out, err, loaded = run_code(code, *COMMANDS)
    pages = out.count("usage: overlaptop ")
    assert (pages, err, loaded & {"torch", "textual", "rich"}) == (1 + len(COMMANDS), "", set())
    _, _, loaded = run_code(code)
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import overlaptop", HEAVY),
        ("import overlaptop.workloads.catalog", HEAVY),
        ("import overlaptop.remote.pool, overlaptop.remote.host", {"torch", "textual", "zmq", "numpy"}),
        ("import overlaptop.agent.telemetry.telemetry", {"torch", "numpy", "pynvml"}),
        ("from overlaptop.commands import dashboard, demo, jobs, once, stream", {"torch", "textual"}),
        (
            f"from overlaptop.cli import main\nmain(['analyze', '{DATA / 'ddp_gloo'}', '--json'])",
            {*HEAVY - {"numpy"}, "asyncio"},
        ),
    ],
)
def test_nothing_is_imported_that_is_not_needed(code, unwanted):
    _, _, loaded = run_code(code)
    assert loaded & unwanted == set()


@pytest.mark.parametrize("command", ["doctor", "--list", "analyze"])
def test_a_package_that_is_missing_is_one_line_and_status_1(command):
    blocked = ("numpy", "msgpack", "msgspec", "zmq", "textual")
    code = f"sys.modules.update(dict.fromkeys({blocked!r}))\nfrom overlaptop.cli import main\n"
    out, err, _ = run_code(f"{code}assert main([{command!r}]) == 1")
    assert (out, err.count("\n")) == ("", 1)
    assert ": pip install " in err


@pytest.mark.parametrize(
    ("words", "offered"),
    [("ca", "capture"), ("capture --st", "--steps"), ("slack --place g", "gpu"), ("--on", "--once")],
)
def test_bash_completes_commands_options_and_choices(words, offered):
    script = (
        'eval "$1"; COMP_WORDS=(overlaptop $2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()\n'
        '_shtab_overlaptop; echo "${COMPREPLY[@]}"'
    )
    completion = run_here("completion", "bash").stdout
    command = ["bash", "-c", script, "bash", completion, words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (offered, "")


def test_version_is_the_packages():
    done = run_here("--version")
    assert (done.returncode, done.stdout) == (0, f"overlaptop {__version__}\n")


def test_what_is_refused_is_a_line_and_a_status_as_in_the_page(monkeypatch):
    """The page has the command lines, too. Of a usage error the last line, without the usage itself."""
    monkeypatch.chdir(DATA)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    page = []
    for line in (PAGES / "refusals.txt").read_text().splitlines():
        if line.startswith("$ overlaptop"):
            done = run_here(*shlex.split(line)[2:])
            *usage, said = done.stderr.splitlines() or [""]
            assert done.stdout == ""
            assert not usage or usage[0].startswith("usage: ")
            page.append(f"{line}\n{said}\n[{done.returncode}]\n")
    check_page("refusals", "".join(page))


def test_socket_folder_that_others_may_enter_is_refused(socket_dir):
    socket_dir.chmod(0o755)
    done = run_here("--json")
    socket_dir.chmod(0o700)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert str(socket_dir) in done.stderr
    assert "has mode 0755, not 0700" in done.stderr


@pytest.mark.parametrize("readonly", [True, False])
def test_readonly_dashboard_starts_and_changes_nothing(monkeypatch, readonly):
    seen = []

    def show(session, screen):
        seen.append((screen.readonly, screen.launcher is None))
        commands = make_setting(BUCKET_CAP_MB, 50), make_trial(BUCKET_CAP_MB, 50, 20)
        seen.append({session.send(each) for each in commands})
        return 0

    monkeypatch.setattr(dashboard, "require_terminal", lambda _theme: None)
    monkeypatch.setattr(dashboard, "show", show)
    assert cli.main(["--readonly"] if readonly else []) == 0
    refusal = "this dashboard is read-only" if readonly else "there is no connection to the job"
    assert seen == [(readonly, readonly), {refusal}]


@pytest.mark.parametrize(
    ("words", "typed", "shown"),
    [
        ("--once --wait", "", b"waiting: "),
        ("--json --wait", "", b"waiting: "),
        ("record --wait", "", b"waiting: "),
        ("exporter --port 0", "", b"/metrics"),
        ("mcp", '{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n', b'"id":1,'),
        ("", "", b"workloads"),
    ],
)
def test_ctrl_c_ends_a_command_that_waits(words, typed, shown):
    with Terminal(*words.split()) as terminal:
        terminal.type(typed)
        terminal.read_until(shown)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
        assert b"Traceback" not in terminal.seen


def test_ctrl_c_in_an_import_ends_at_once(tmp_path):
    (tmp_path / "shtab.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n1 / 0\n")
    done = overlaptop("completion", "bash", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
def test_output_fits_any_encoding_and_is_ascii_unless_that_is_utf(encoding, tmp_path):
    environ = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    for path in (DATA / "ddp_gloo", tmp_path / "≥é–界"):
        done = overlaptop("analyze", str(path), env=environ, encoding=encoding)
        assert done.stdout.isascii()
        assert "<=78.7 %" in done.stdout or "no such file or directory" in done.stderr


def test_a_full_disk_is_one_line_and_status_1():
    with Path("/dev/full").open("w") as full:
        words = [*OVERLAPTOP, "completion", "bash"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.stderr == f"overlaptop: stdout cannot be written: {os.strerror(errno.ENOSPC).lower()}\n"
    assert done.returncode == 1


def test_a_key_is_written_once_and_never_printed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = run_here("key")
    key = read_key()
    second = run_here("key")
    assert (first.returncode, first.stdout, second.returncode) == (0, "", 1)
    assert first.stderr.startswith(f"overlaptop: wrote {key_path()}; without a shared home, copy it to all")
    assert second.stderr == f"overlaptop: {key_path()} exists: remove it first to replace the key\n"
    assert read_key() == key
    assert key.hex() not in first.stderr + second.stderr
