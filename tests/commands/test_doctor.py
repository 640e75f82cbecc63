"""``overlaptop doctor`` its lines, records and exit status."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from overlaptop import __version__
from overlaptop.commands import doctor
from overlaptop.doctor.findings import fault
from tests.doctor.ssh_hosts import make_ssh

from .running import records, run_code, run_here


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPTOP_SSH", str(make_ssh(tmp_path)))


@pytest.fixture
def small_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the doctor asks of torch, quickly: for tests that are not about it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text(
        "from types import SimpleNamespace\n"
        "__version__ = '2.13.0+cpu'\n"
        "version = SimpleNamespace(cuda=None, hip=None)\n"
        "cuda = SimpleNamespace(is_available=lambda: False)\n"
        "distributed = SimpleNamespace(is_available=lambda: True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def test_here_it_prints_a_line_for_each_finding_and_a_verdict_and_imports_torch_in_a_child_only(
    socket_dir: Path,
) -> None:
    out, err, loaded = run_code("from overlaptop.cli import main\nassert main(['doctor']) == 0")
    first, *lines, verdict = out.splitlines()
    assert first.startswith("here (")
    assert f"  ok       overlaptop  {__version__}, protocol " in out
    assert f"  ok       torch       {importlib.metadata.version('torch').partition('+')[0]}" in out
    assert f"  ok       sockets     {socket_dir}, ours, mode 0700" in lines
    assert all(line.split()[0] in ("ok", "warning", "fault", "unknown") for line in lines)
    assert (verdict, err) == ("monitoring will work here", "")
    assert not {"torch", "textual", "zmq", "pynvml"} & loaded


def test_a_fault_is_status_1_and_comes_with_its_remedy(small_torch: None, socket_dir: Path) -> None:
    socket_dir.chmod(0o755)
    done = run_here("doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"fault    sockets     {socket_dir} has mode 0755, not 0700: run chmod 700" in done.stdout
    assert done.stdout.endswith("monitoring will not work here\n")


def test_records_are_of_here_and_of_each_host(ssh: None, small_torch: None) -> None:
    done = run_here("doctor", "--json", "wrong", "nobody")
    found = records(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    checks = [record for record in found if record["type"] == "check"]
    for record in checks:
        assert set(record) == {"type", "host", "check", "status", "finding", "remedy"}
    ends = [(each["host"], each["works"]) for each in found if each["type"] == "doctor"]
    assert ends == [("", True), ("wrong", False), ("nobody", False)]
    assert [(each["host"], each["check"]) for each in checks if each["status"] == "fault"] == [
        ("wrong", "relay"),
        ("nobody", "relay"),
    ]


def test_the_findings_of_a_host_stand_below_its_name(ssh: None, small_torch: None) -> None:
    *_, name, way, relay, verdict = run_here("doctor", "strange").stdout.splitlines()
    assert (name, way) == ("strange", "  ok       way         me@10.0.0.5 port 22")
    assert relay.startswith("  fault    relay       its host key is not known here: connect once with ")
    assert verdict == "monitoring will not work on strange"


def test_an_interpreter_that_is_named_must_do(tmp_path: Path) -> None:
    done = run_here("doctor", "--python", tmp_path / "nowhere")
    words = f"  fault    python      {tmp_path / 'nowhere'}: the interpreter cannot be run (No such file"
    assert (done.returncode, words in done.stdout) == (1, True)


def test_the_command_loads_nothing_that_may_be_missing() -> None:
    blocked = ("numpy", "msgpack", "msgspec", "zmq", "textual", "rich", "torch")
    out, err, _ = run_code(
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from overlaptop.cli import main\n"
        "assert main(['doctor']) == 1"
    )
    assert "without msgpack, msgspec, numpy, textual, zmq: pip install" in out
    assert err == ""


def test_text_of_another_host_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._tell("a\x1b[2Jhost", [fault("torch", "a\x1b]0;title\x07", "\x9b1m")], as_json=False)
    assert all(character.isprintable() or character == "\n" for character in capsys.readouterr().out)
