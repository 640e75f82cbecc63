"""What all commands have in common: what they import, how they refuse, and what they do without a job."""

import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overlaptop import __version__, cli
from overlaptop.commands import COMMANDS, dashboard
from overlaptop.commands.output import needs_ascii
from overlaptop.jobs.gather_key import key_path, read_key
from overlaptop.wire.commands import make_setting, make_trial
from tests.fleet.builders import BUCKET_CAP_MB
from tests.formats.traces import DATA

from .running import OVERLAPTOP, START_LIMIT_S, Terminal, overlaptop, run_code, run_here

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


def test_version_is_the_packages_and_no_jobs_are_an_empty_list():
    for words, out in ((["--version"], f"overlaptop {__version__}\n"), (["--list"], "")):
        done = run_here(*words)
        assert (done.returncode, done.stdout) == (0, out)
    assert run_here("--list", "--json").stdout == ""


USAGE_ERRORS = {
    "": [
        ("--nonsense", "unrecognized arguments: --nonsense"),
        ("--redonly", "unrecognized arguments: --redonly; did you mean --readonly?"),
        ("--json demo", "demo is a command and comes first; a host of that name is ssh://demo"),
        ("--steps 3", "--steps goes with --json"),
        ("--json --steps 0", "must be a positive whole number"),
        ("--json --job ../etc", "is no job's key"),
        ("--list --once", "--list goes with"),
        ("--refresh nan", "must be from 0.1 to 10"),
        ("", "the dashboard needs a terminal"),
        ("--theme nonsense", "no theme 'nonsense'; there are: "),
        ("--once gpu-a --host ftp://gpu-b", "there is no ftp://"),
        ("--once --hosts /no/such/file", "--hosts /no/such/file: No such file or directory"),
        ("--once --via '", "no closing quotation"),
        ("--once --python /opt/py", "--python goes with a host"),
        ("--once gpu-a --python it's", "cannot travel"),
        ("--once gpu-a --python=-c", "cannot begin with a dash"),
        ("gpu-a --rate fast", "must be 1k bytes a second or more"),
    ],
    "analyze": [
        ("", "the following arguments are required: PATH"),
        ("a b --cycle c", "argument --cycle: invalid int value: 'c'"),
        ("a --lane nonsense", "a lane rule is LANE=REGEX"),
    ],
    "capture": [
        ("--steps 101", "steps must be from 1 to 100, not 101"),
    ],
    "demo": [
        ("--nproc none", "must be a positive whole number"),
        ("nonsense", "no workload is called 'nonsense'; there are: ddp, "),
        ("--layers 4", "unrecognized arguments: --layers; a script's or workload's follow --"),
        ("", "the dashboard needs a terminal"),
    ],
    "doctor": [
        ("--rate 20k gpu-a", "--rate is for watching a host"),
        ("gpu-a --python it's", "cannot travel"),
    ],
    "relay": [("", "required: --stdio")],
    "set": [
        ("bucket_cap_mb", "must be NAME=VALUE with a whole number or script, not 'bucket_cap_mb'"),
        ("bucket_cap_mb=99999999999", "must be NAME=VALUE with a whole number"),
        ("bucket_cap_mb=\u0661", "must be NAME=VALUE with a whole number"),
        ("bucket_cap_mb=5 --json", "--json goes without NAME=VALUE"),
    ],
    "tune": [
        ("--range 9:1", "must be A:B, two whole numbers with A <= B, not '9:1'"),
        ("--nproc 2", "go with SCRIPT"),
        ("-- --steps 5", "go with SCRIPT"),
        ("ddp --keep", "are for a job that runs"),
        ("nowhere.py", "no script nowhere.py, and no workload of that name; there are: ddp"),
        ("ddp -- --layers none", "--layers"),
        ("ddp --layers 4", "unrecognized arguments: --layers 4; a script's or workload's follow --"),
        ("ddp --host gpu-a", "SCRIPT is started here: give no host with it"),
    ],
}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param([command, *line.split()] if command else line.split(), reason, id=f"{command} {line}")
        for command, errors in USAGE_ERRORS.items()
        for line, reason in errors
    ],
)
def test_a_usage_error_is_status_2_and_a_line_on_stderr(words, reason):
    done = run_here(*words)
    assert (done.returncode, done.stdout) == (2, "")
    *usage, line = done.stderr.splitlines()
    assert line.startswith("overlaptop")
    assert reason in line
    assert not usage or usage[0].startswith("usage: ")


@pytest.mark.parametrize("line", ["--json", "--once", "--json --job abc", "capture", "set", "tune"])
def test_without_a_job_the_answer_is_one_line_and_status_1(line):
    done = run_here(*line.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("overlaptop: no job with an agent runs here; start one: torchrun ")


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
    ("words", "shown"),
    [
        ("--once --wait", b"waiting: "),
        ("--json --wait", b"waiting: "),
        ("record --wait", b"waiting: "),
        ("exporter --port 0", b"/metrics"),
        ("", b"workloads"),
    ],
)
def test_ctrl_c_ends_a_command_that_waits(words, shown):
    with Terminal(*words.split()) as terminal:
        terminal.read_until(shown)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
        assert b"Traceback" not in terminal.seen


def test_ctrl_c_ends_the_server_for_ai_agents():
    pytest.importorskip("mcp")
    pipe = subprocess.PIPE
    with subprocess.Popen([*OVERLAPTOP, "mcp"], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as server:
        server.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        server.stdin.flush()
        assert '"id":1' in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.wait(START_LIMIT_S) == 130
        assert server.stderr.read() == ""


def test_ctrl_c_in_an_import_ends_at_once(tmp_path):
    (tmp_path / "shtab.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n1 / 0\n")
    done = overlaptop("completion", "bash", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
def test_output_fits_any_encoding(encoding, tmp_path):
    environ = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    for words in (["analyze", str(DATA / "ddp_gloo")], ["analyze", str(tmp_path / "≥é–界")]):
        done = overlaptop(*words, env=environ, encoding=encoding)
        assert "Error" not in done.stderr
        assert "rank  steps" in done.stdout or "overlaptop: " in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "utf-8"])
def test_ascii_is_drawn_unless_the_encoding_is_utf(encoding, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    assert needs_ascii() == (encoding != "utf-8")


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
