"""``overlaptop doctor``: its lines, records and exit status, here and on other hosts."""

import importlib.metadata
import shlex
import sys

import pytest

from overlaptop import __version__
from overlaptop.commands import doctor
from overlaptop.records import CheckRecord, as_json

from .running import records, run_code, run_here

SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case $1 in
good) echo '{"a banner'; exec sh -c "$2" ;;
wrong) echo "me@wrong: Permission denied (publickey)." >&2; exit 255 ;;
restricted) echo "Welcome" ;;
silent) exec sleep 1000 ;;
esac
"""
"""Its hosts are this machine, reached or not by their names."""


@pytest.fixture(autouse=True)
def ssh(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("OVERLAPTOP_SSH", str(tmp_path / "ssh"))
    monkeypatch.setitem(sys.modules, "torch", None)  # quicker, where it is looked at in this process


def test_here_it_prints_a_line_for_each_finding_and_a_verdict(socket_dir):
    out, err, loaded = run_code("from overlaptop.cli import main\nassert main(['doctor']) == 0")
    first, *lines, verdict = out.splitlines()
    assert first.startswith("here (")
    assert f"  ok       overlaptop  {__version__}, protocol " in out
    assert f"  ok       torch       {importlib.metadata.version('torch').partition('+')[0]}" in out
    assert f"  ok       sockets     {socket_dir}, ours, mode 0700" in lines
    assert (verdict, err) == ("monitoring will work here", "")
    assert not {"textual", "zmq"} & loaded


def test_a_fault_is_status_1_and_says_what_to_do(socket_dir):
    socket_dir.chmod(0o755)
    done = run_here("doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{socket_dir} has mode 0755, not 0700: run chmod 700 {socket_dir};" in done.stdout
    assert done.stdout.endswith("monitoring will not work here\n")


def test_host_examines_itself_and_others_have_the_reason():
    done = run_here("doctor", "--json", "--python", sys.executable, "good", "wrong", "restricted")
    found = records(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    ends = [(each["host"], each["works"]) for each in found if each["type"] == "doctor"]
    assert ends == [("good", True), ("wrong", False), ("restricted", False)]
    there = {each["check"] for each in found if each["type"] == "check" and each["host"] == "good"}
    assert {"overlaptop", "sockets", "jobs", "torch"} <= there
    faults = [each["finding"] for each in found if each["type"] == "check" and each["status"] == "fault"]
    assert [words.partition(" ")[0] for words in faults] == ["Permission", "it"]


def test_a_host_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(doctor, "HOST_LIMIT_S", 0.5)
    done = run_here("doctor", "silent")
    assert (done.returncode, "fault    host        it had not answered" in done.stdout) == (1, True)


def test_checks_that_a_crash_cuts_off_are_a_fault_and_move_no_cursor():
    record = as_json(CheckRecord(host="", check="a\x1b[2J", status="ok", finding="none", remedy=""))
    via = f"sh -c {shlex.quote(f'echo {shlex.quote(record)}; kill -SEGV $$')}"
    done = run_here("doctor", "--via", via)
    assert (done.returncode, "fault    host        a signal (11) ended it" in done.stdout) == (1, True)
    assert "a?[2J" in done.stdout
    assert all(character.isprintable() or character == "\n" for character in done.stdout)
