"""Many connections at once, and the user at the terminal. A fake ssh acts by the name of the host."""

import os
import sys
from contextlib import ExitStack

import pytest

from overlaptop.remote.pool import AT_ONCE, ConnectionPool
from overlaptop.remote.targets import Target
from tests.commands.running import Terminal
from tests.processes import eventually, runs
from tests.remote.fake_relays import FAKE_RELAYS, JOBS

# As ssh it ends with "-- HOST COMMAND", as srun it has a --nodelist. A host's name says what it does.
PROGRAM = f"""#!/bin/sh
for word; do
    case $word in
        BatchMode=*) batch=${{word#BatchMode=}} ;;
        --nodelist=*) node=${{word#--nodelist=}} ;;
    esac
    before=$last last=$word
done
host=${{node:-$before}}
denied() {{ echo "me@$host: Permission denied (password)." >&2; exit 255; }}
kind=${{host%%-*}}
case $kind in
    locked)
        [ $batch = no ] || denied
        echo "This host is watched." >&2
        printf "password for $host: " >/dev/tty
        read -r password </dev/tty
        [ "$password" = sesame ] || denied
        kind=plain ;;
    slow)
        : >$SSH_DIR/logging-in.$host
        ls $SSH_DIR | grep -c logging-in >>$SSH_DIR/counted
        sleep 0.05
        rm $SSH_DIR/logging-in.$host
        kind=plain ;;
    rude) read -r password </dev/tty || denied; kind=plain ;;
    refused) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255 ;;
esac
exec {sys.executable} {FAKE_RELAYS} $kind
"""


@pytest.fixture(autouse=True)
def ssh(tmp_path, monkeypatch):
    for name in ("ssh", "srun"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "ssh-dir").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SSH_DIR", str(tmp_path / "ssh-dir"))


@pytest.fixture
def pool_of():
    """Makes pools of these hosts, and tries each host once: the pool, and what it reports."""
    with ExitStack() as pools:

        def make(*words):
            reported: list[str] = []
            pool = ConnectionPool([*map(Target.parse, words)], reported.append)
            pools.callback(pool.close)
            return pool, reported

        yield make


def test_each_host_is_tried_once_and_what_became_of_it_is_said(pool_of):
    pool, reported = pool_of("plain-a", "refused-b", "waiting-c", "failing-d")
    pool.connect(interactive=False)
    assert sorted(reported) == [
        "failing-d: /tmp/x belongs to uid 7, not to you",
        f"plain-a: connected (overlaptop {JOBS.version} on {JOBS.host})",
        "refused-b: ssh: connect to host refused-b port 22: Connection refused",
        "waiting-c: reached; no job in /tmp/x",
    ]
    assert [connection.state.value for connection in pool.hosts] == ["up", "down", "up", "down"]


def test_at_most_four_are_logging_in_at_once_and_all_get_in(pool_of, tmp_path):
    pool, _ = pool_of(*(f"slow-{number}" for number in range(10)))
    pool.connect(interactive=False)
    assert all(connection.ready for connection in pool.hosts)
    counted = list(map(int, (tmp_path / "ssh-dir" / "counted").read_text().split()))
    assert (len(counted), max(counted) <= AT_ONCE) == (10, True)


@pytest.mark.parametrize(
    ("first", "nodes"),
    [
        ("root", ["root-1"]),
        ("plain", ["plain-1", "plain-2", "root-3"]),
    ],
)
def test_a_gathered_slurm_job_needs_one_srun(pool_of, first, nodes):
    pool, _ = pool_of(*(f"srun://77/{node}" for node in (f"{first}-1", "plain-2", "root-3")))
    pool.connect(interactive=False)
    assert [each.target.within for each in pool.hosts] == nodes


def test_a_closed_pool_leaves_nothing(pool_of):
    pool, _ = pool_of("plain-a", "stubborn-b", "mute-c")
    *_, mute = pool.hosts
    eventually(lambda: pool.poll() or (mute.processes and all(host.ready for host in pool.hosts[:2])))
    pids = [process.pid for connection in pool.hosts for process in connection.processes]
    assert len(pids) == 3
    pool.close()
    eventually(lambda: not any(map(runs, pids)))


def test_hosts_that_would_ask_are_retried_one_by_one():
    with Terminal("--list", "locked-a", "plain-b", "rude-c", "locked-d", "refused-e") as terminal:
        terminal.read_until(b"locked-a: once more, with your help")
        terminal.read_until(b"This host is watched.")
        terminal.read_until(b"password for locked-a: ")
        assert b"rude-c: once more" not in terminal.seen
        terminal.type("sesame\n")
        terminal.read_until(b"locked-a: connected")
        # It asks on the terminal unbidden, which failed at once at first.
        terminal.read_until(b"rude-c: once more, with your help")
        terminal.type("anything\n")
        terminal.read_until(b"rude-c: connected")
        terminal.read_until(b"password for locked-d: ")
        terminal.seen = b""
        terminal.type("wrong\n")
        assert terminal.wait() == 0
        assert b"locked-d: Permission denied (password)" in terminal.seen
        assert b"refused-e: once more" not in terminal.seen


def test_an_interrupt_at_the_password_leaves_nothing(traces):
    with Terminal("--list", "plain-a", "locked-b") as terminal:
        terminal.read_until(b"password for locked-b: ")
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert b"Traceback" not in terminal.seen
    assert traces.alive() == []
