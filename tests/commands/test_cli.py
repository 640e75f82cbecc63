"""The command line as a process: what it imports, says and returns."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("torch", "textual", "zmq", "numpy", "msgpack", "rich")


def overlaptop(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "overlaptop", *words],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules, file=sys.__stderr__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.split()}


HELP = """
from overlaptop.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
"""


@pytest.mark.parametrize("code", ["import overlaptop", HELP, "import overlaptop.workloads.catalog"])
def test_importing_the_package_and_its_help_load_nothing_heavy(code: str) -> None:
    modules = loaded_by(code)
    assert "overlaptop" in modules
    assert modules.isdisjoint(HEAVY)


def test_no_command_loads_torch() -> None:
    code = "from overlaptop.console import dashboard, demo, jobs, once, stream"
    assert loaded_by(code).isdisjoint({"torch", "textual"})


def test_help_returns_in_a_third_of_a_second() -> None:
    def once_s() -> float:
        began_s = time.monotonic()
        assert overlaptop("--help").returncode == 0
        return time.monotonic() - began_s

    # The best of several: the machine may be busy with something else, never with less.
    assert min(once_s() for _ in range(5)) < 0.3


def test_the_version_is_the_packages() -> None:
    import overlaptop as package

    assert overlaptop("--version").stdout == f"overlaptop {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--json", "demo"], "demo is a command and comes first; a host of that name is ssh://demo"),
        (["--steps", "3"], "--steps goes with --json"),
        (["--once", "--json", "--steps", "3"], "--steps goes with --json"),
        (["--json", "--steps", "0"], "must be a positive whole number"),
        (["--json", "--steps", "-1"], "must be a positive whole number"),
        (["--json", "--job", "../etc"], "is no job's key"),
        (["--list", "--once"], "--list goes with"),
        (["--refresh", "nan"], "must be from 0.1 to 10"),
        (["demo", "--nproc", "none"], "must be a positive whole number"),
        (["demo", "nonsense", "--json"], "no workload is called 'nonsense'; there are: ddp, "),
        (["demo", "--layers", "4"], "unrecognized arguments: --layers"),
        ([], "the dashboard needs a terminal"),
        (["demo"], "the dashboard needs a terminal"),
    ],
)
def test_a_usage_error_is_status_2_and_a_line_on_stderr(words: list[str], reason: str) -> None:
    done = overlaptop(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["--json"], ["--once"], ["--once", "--json"], ["--json", "--job", "abc"]]
)
def test_without_a_job_the_answer_is_one_line_and_status_1(words: list[str]) -> None:
    done = overlaptop(*words)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("overlaptop: no job")
    assert done.stderr.count("\n") == 1


def test_a_list_of_no_jobs_is_empty() -> None:
    done = overlaptop("--list")
    assert (done.returncode, done.stdout) == (0, "")
    assert overlaptop("--list", "--json").stdout == ""


def test_a_socket_folder_that_others_may_enter_is_refused_in_one_line(socket_dir: Path) -> None:
    socket_dir.chmod(0o755)
    done = overlaptop("--json")
    assert done.returncode == 1
    assert str(socket_dir) in done.stderr
    assert done.stderr.count("\n") == 1
