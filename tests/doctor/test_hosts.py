"""Other hosts, by an ssh that reaches this machine, or does not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from overlaptop import __version__
from overlaptop.doctor import hosts
from overlaptop.doctor.children import Completed
from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, Status, fault, ok, works
from overlaptop.doctor.hosts import examine
from overlaptop.remote import attempt
from overlaptop.remote.targets import Target
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.remote.connections import fake_relay

from .machines import Programs, by_check, printed
from .ssh_hosts import make_python, make_ssh

GOOD_RELAY = f"overlaptop {__version__}, protocol {PROTOCOL_VERSION}, on "
WELL = [ok("torch", "2.11.0+cu130"), ok("ssh", "theirs"), ok("terminal", "theirs"), ok("unicode", "theirs")]


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Short: the path of a unix socket has 107 bytes.
    (tmp_path / "s").mkdir(mode=0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(tmp_path / "s"))
    monkeypatch.setenv("OVERLAPTOP_SSH", str(make_ssh(tmp_path)))


def look(*words: str, python: str = sys.executable) -> dict[str, list[Finding]]:
    targets = [Target.parse(word) for word in words]
    return {target.name: found for target, found in examine(targets, Facts(), python)}


def test_a_host_that_is_well_has_its_own_findings(tmp_path: Path) -> None:
    python = make_python(tmp_path, WELL)
    found = by_check(look("good", python=str(python))["good"])
    # Its own terminal and ssh are nothing to us.
    assert list(found) == ["way", "relay", "offset", "torch"]
    assert found["way"].text == "me@10.0.0.5 port 22"
    assert found["relay"].text.startswith(GOOD_RELAY)
    assert found["offset"].text.startswith("its clock ")
    assert {finding.status for finding in found.values()} == {Status.OK}


def test_the_whole_far_end_is_the_doctor_itself() -> None:
    found = by_check(look("banner")["banner"])
    assert works(found.values())
    assert set(found) >= {"way", "relay", "offset", "overlaptop", "sockets", "jobs", "python", "torch"}
    assert not set(found) & {"ssh", "terminal", "unicode"}


def test_a_host_that_is_not_reached_is_one_clear_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = {
        "wrong": "permission denied (publickey): ssh-add the key, or put it there with ssh-copy-id wrong",
        "strange": "its host key is not known here: connect once with ssh strange and confirm it",
        "refused": "the host refuses port 22: no sshd runs there, or it listens on another port",
        "nobody": "no address is known for nobody: look at its spelling, the VPN, or ~/.ssh/config",
        "docker://gone": "there is no docker on this machine",
    }
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look(*said)
    faults = {name: [each for each in of if each.status is Status.FAULT] for name, of in found.items()}
    assert {name: [each.line for each in of] for name, of in faults.items()} == {
        name: [words] for name, words in said.items()
    }
    assert {each.check for of in faults.values() for each in of} == {"relay"}


def test_several_hosts_come_in_their_order_whatever_becomes_of_each(tmp_path: Path) -> None:
    findings = [*WELL, fault("sockets", "others can get in", "chmod 700")]
    python = make_python(tmp_path, findings)
    names = ["good1", "wrong", "good2", "nobody", "good3", "good4", "refused"]
    found = look(*names, python=str(python))
    assert list(found) == names
    # A fault that a host finds is one of it.
    assert not any(works(found[name]) for name in names)
    ends = [found[name][-1].line for name in names if name.startswith("good")]
    assert set(ends) == {"others can get in: chmod 700"}


def test_an_interpreter_without_overlaptop_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\necho '{python}: No module named overlaptop' >&2; exit 1\n")
    python.chmod(0o755)
    named = by_check(look("good", python=str(python))["good"])["relay"]
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = by_check(look("good", python="")["good"])["relay"]
    assert named.status is found.status is Status.FAULT
    assert "there has no overlaptop: pip install it there" in named.text
    assert found.text.startswith("reached, but there is no job in ")
    assert "--python" in found.remedy


@pytest.mark.parametrize(
    ("ran", "status", "words"),
    [
        (
            Completed(2, "", "overlaptop: error: unrecognized arguments: doctor"),
            Status.WARNING, "the overlaptop there is older and has no doctor: update it",
        ),
        (Completed(137, "", "Killed"), Status.WARNING, "not be run there: it ended with status 137"),
        (Completed(0, "nothing of use", ""), Status.WARNING, "could not be run there"),
        (Completed(None, "", ""), Status.UNKNOWN, "had not ended after 100 s"),
        (printed(WELL[0].record(""), status=None), Status.UNKNOWN, "had not ended after 100 s"),
    ],
)  # fmt: skip
def test_checks_that_cannot_be_run_there_leave_monitoring_as_it_is(
    ran: Completed, status: Status, words: str
) -> None:
    facts = Facts(start=Programs(lambda argv: printed() if "-G" in argv else ran))
    [(_, findings)] = examine([Target.parse("good")], facts, sys.executable)
    found = by_check(findings)
    assert found["checks"].status is status
    assert words in found["checks"].line
    assert ("torch" in found) == ran.output.startswith("{")
    assert works(found.values())


def test_a_key_that_may_only_relay_is_a_warning() -> None:
    found = by_check(look("restricted")["restricted"])
    assert found["relay"].status is Status.OK
    assert found["checks"].status is Status.WARNING
    assert "may only start the relay" in found["checks"].text


@pytest.mark.parametrize(
    ("module", "limit", "words"),
    [
        (hosts, "CONNECT_S", "the host had not answered in time"),
        (attempt, "FIRST_BYTES_S", "the host does not answer"),
    ],
)
def test_a_host_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str, words: str
) -> None:
    monkeypatch.setattr(module, limit, 1.0)
    finding = by_check(look("silent")["silent"])["relay"]
    assert finding.status is Status.FAULT
    assert words in finding.text


SHARED = "me@10.0.0.5 port 22, shared by all connections (ControlMaster)"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("\n\x1b[31m\nport 1\nproxyjump none\n", "me@10.0.0.5 port 22"),
        ("proxyjump login", "me@10.0.0.5 port 22, by login"),
        ("proxycommand nc %h %p", "me@10.0.0.5 port 22, by a ProxyCommand"),
        ("controlmaster auto\ncontrolpath /tmp/%C", SHARED),
        # Another folder for each host: it cannot be known here.
        ("controlmaster auto\ncontrolpath /nothere/%h/%C", SHARED),
        ("controlmaster no\ncontrolpath /nothere/%C", "me@10.0.0.5 port 22"),
        # Without a path nothing is shared, whatever ControlMaster says.
        ("controlmaster auto", "me@10.0.0.5 port 22"),
        (
            "controlmaster auto\ncontrolpath /nothere/%C",
            f"{SHARED}; ControlPath is in /nothere, which is not there: mkdir -p /nothere",
        ),
    ],
)
def test_the_route_to_a_host_is_described(monkeypatch: pytest.MonkeyPatch, config: str, words: str) -> None:
    monkeypatch.setenv("CONFIG", config)
    finding = by_check(look("wrong")["wrong"])["way"]
    assert finding.line == words
    assert finding.status is (Status.WARNING if finding.remedy else Status.OK)


def test_this_machine_and_a_prefix_need_no_ssh(tmp_path: Path) -> None:
    python = make_python(tmp_path, WELL)
    targets = [Target.parse("local://"), Target.via("env COLOUR=red")]
    for _, found in examine(targets, Facts(), str(python)):
        assert list(by_check(found)) == ["relay", "offset", "torch"]


@pytest.mark.parametrize(("behaviour", "older"), [("older", "that one"), ("newer", "this one")])
def test_another_protocol_there_is_a_fault_that_names_the_older_side(behaviour: str, older: str) -> None:
    [(_, [finding])] = examine([fake_relay(behaviour)], Facts())
    assert (finding.check, finding.status) == ("relay", Status.FAULT)
    assert f"{older} is older, update it" in finding.text


def test_a_clock_that_is_far_from_ours_is_a_warning() -> None:
    [(_, findings)] = examine([fake_relay("ahead")], Facts())
    finding = by_check(findings)["offset"]
    assert finding.status is Status.WARNING
    assert finding.text.startswith("its clock is 5.00 s ahead of ours, known to ")
    assert "NTP" in finding.remedy
