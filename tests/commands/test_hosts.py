"""Other hosts on the command line: what names one, what is reported of each, and whose jobs are shown."""

import argparse
import sys

import pytest

from overlaptop.commands import jobs
from overlaptop.commands.arguments import add_hosts, hosts_of
from overlaptop.commands.following import report_connections, require_connection, settle
from overlaptop.commands.once import render
from overlaptop.commands.output import CommandError
from tests.fleet.builders import status, step, welcome
from tests.fleet.fakes import record
from tests.hubs import hubs, make_rank
from tests.remote import fake_relays
from tests.tui.clusters import Cluster

from .running import records, run_here

__all__ = ["hubs", "make_rank"]  # fixtures


def fake_relay(behaviour):
    """A command prefix that reaches one of tests/remote/fake_relays.py."""
    return fake_relays.fake_relay(behaviour).name.removeprefix("via ")


def named(*words):
    parser = argparse.ArgumentParser()
    add_hosts(parser, as_words=True)
    return hosts_of(parser.parse_args(words))


@pytest.mark.parametrize(
    ("text", "bytes_per_s"), [("20k", 20_000), ("1.5m", 1_500_000), ("64000", 64_000), ("20kB/s", 20_000)]
)
def test_hosts_are_words_a_file_and_command_prefixes(tmp_path, text, bytes_per_s):
    file = tmp_path / "hosts"
    file.write_text("gpu-c  # the third\n\ndocker://trainer\n")
    how = ("--python", "/opt/py", "--remote-dir", "~/o", "--rate", text)
    found = named("me@gpu-a", "ssh://demo", "--hosts", str(file), "--via", "sudo -u trainer", *how)
    words = ["me@gpu-a", "ssh://demo", "gpu-c", "docker://trainer", "via sudo -u trainer"]
    assert [target.name for target in found.targets] == words
    assert (found.python, found.remote_dir, found.bytes_per_s) == ("/opt/py", "~/o", bytes_per_s)
    assert named() is None


def test_hosts_out_of_reach_are_a_line_each_and_status_1():
    done = run_here("--once", "--via", "/no/such/program", "--via", fake_relay("failing"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "via /no/such/program: there is no /no/such/program on this machine" in done.stderr
    assert "/tmp/x belongs to uid 7, not to you" in done.stderr
    assert done.stderr.splitlines()[-1] == "overlaptop: none of 2 hosts can be reached"
    assert done.stderr.count("\n") == 3


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("status", "overlaptop --once"),
        ("captur", "overlaptop capture"),
        ("zero", "overlaptop demo zero"),
        ("train.py", "torchrun --nproc-per-node=N -m overlaptop.agent train.py"),
        ("gpu-7", ""),
    ],
)
def test_word_that_no_host_has_may_be_meant_for_a_command(word, meant, tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    said = "ssh: Could not resolve hostname that: Name or service not known"
    ssh.write_text(f"#!/bin/sh\necho '{said}' >&2; exit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("OVERLAPTOP_SSH", str(ssh))
    done = run_here("--once", word)
    first, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert first.startswith(f"overlaptop: {word}: ssh: Could not resolve hostname that: ")
    hint = f"; did you mean: {meant}" if meant else ""
    assert last == f"overlaptop: the host cannot be reached{hint}"


def test_a_host_that_fails_is_reported_and_the_others_go_on():
    plain = fake_relay("plain")
    done = run_here("--list", "--json", "--via", "/no/such/program", "--via", plain)
    (job,) = records(done.stdout)
    assert (done.returncode, job["job"], job["host"]) == (0, "job-1", f"via {plain}")
    assert "there is no /no/such/program" in done.stderr
    assert "connected (overlaptop 1.2.3 on far-host)" in done.stderr


def test_table_is_of_the_job_there(hubs, make_rank, socket_dir, tmp_path):
    hubs.start()
    for number in range(2):
        rank = make_rank(number).greet()
        rank.send(rank.step(0))
    here = ("local://", "--python", sys.executable)
    done = run_here("--once", *here)
    assert (done.returncode, "train.py · 2 ranks" in done.stdout) == (0, True)
    assert "job job-1" in done.stdout
    for words, complaint in (
        (["--job", "job-2", "--via", fake_relay("plain")], "no job job-2 runs there; there is: job-1 (tr"),
        ([*here, "--remote-dir", str(tmp_path / "none")], "no job with an agent runs there; "),
    ):
        done = run_here("--once", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1].startswith(f"overlaptop: {complaint}")


def test_an_ended_job_is_listed_as_ended(monkeypatch):
    monkeypatch.setattr(jobs, "list_jobs", lambda: [record("job-1"), record("job-2", ended=True)])
    _, running, ended = run_here("--list").stdout.splitlines()
    assert "ended" not in running
    assert ended.split()[3] == "ended"


# What is printed of a job on several hosts


def test_table_has_hosts_and_marks_ranks_out_of_reach():
    cluster = Cluster("gpu-a", "gpu-b")
    session = cluster.live()
    cluster.host("gpu-b").cut("the connection broke")
    session.tick()
    cluster.clock.pass_s(12)
    page = render(session.tick())
    states = [line.split("  ")[-1] for line in page.splitlines() if line.lstrip()[:1].isdigit()]
    assert states[2:4] == ["out of reach"] * 2
    assert "gpu-b  ○ lost since" in page
    assert "(12 s)  the connection broke  ranks 2-3" in page


def test_steps_that_are_long_over_are_not_the_newest_of_a_host(monkeypatch):
    monkeypatch.setattr("overlaptop.commands.following.LIMIT_S", 0.0)
    cluster = Cluster("gpu-a")
    session = cluster.live()
    assert settle(session).ranks[0].last.step == 39
    cluster.clock.pass_s(100)
    host, ticks = cluster.host("gpu-a"), iter(range(3))
    host.hub.say(welcome(world_size=2))  # connected again, and its history comes anew

    def maintain():
        if next(ticks, None) == 2:
            host.hub.say(*(step(rank, 1290) for rank in (0, 1)), status())

    monkeypatch.setattr(host, "maintain", maintain)
    assert settle(session).ranks[0].last.step == 1290


def test_lost_host_is_reported_beside_records(capsys):
    cluster = Cluster("gpu-a", "gpu-b")
    session = cluster.live()
    lost = set()
    report_connections(session.tick(), lost)
    cluster.host("gpu-b").cut("the connection broke")
    for _ in range(3):
        report_connections(session.tick(), lost)
    cluster.host("gpu-b").connect()
    report_connections(session.tick(), lost)
    assert capsys.readouterr().err.splitlines() == [
        "overlaptop: gpu-b: lost: the connection broke",
        "overlaptop: gpu-b: back",
    ]


def test_a_connection_to_another_host_is_given_time_to_come_back():
    cluster = Cluster("gpu-a")
    session = cluster.live()
    cluster.host("gpu-a").cut()
    session.tick()
    cluster.clock.pass_s(60)
    require_connection(session.tick())
    cluster.clock.pass_s(100)
    with pytest.raises(CommandError, match="did not come back"):
        require_connection(session.tick())
