"""Many connections at once, and the user at the terminal. A fake ssh acts by the name of the host."""

import os
import sys
from contextlib import ExitStack

import pytest

from overlaptop.remote.connection import ConnectionState
from overlaptop.remote.pool import AT_ONCE, ConnectionPool
from overlaptop.remote.targets import Target
from tests.commands.running import Terminal
from tests.processes import eventually, runs
from tests.remote.connections import FAKE_RELAYS
from tests.remote.fake_relays import JOBS

# As ssh it ends with "-- HOST COMMAND". What a host does is in its name, before the first dash.
SSH = f"""#!/bin/sh
for word; do
    case $word in BatchMode=*) batch=${{word#BatchMode=}} ;; esac
    before=$last last=$word
done
case $before in
    locked-*)
        [ $batch = no ] || {{ echo "me@$before: Permission denied (password)." >&2; exit 255; }}
        echo "This host is watched." >&2
        printf "password for $before: " >/dev/tty
        read -r password </dev/tty
        [ "$password" = sesame ] || {{ echo "me@$before: Permission denied (password)." >&2; exit 255; }}
        kind=plain ;;
    slow-*)
        : >$SSH_DIR/logging-in.$before
        ls $SSH_DIR | grep -c logging-in >>$SSH_DIR/counted
        sleep 0.05
        rm $SSH_DIR/logging-in.$before
        kind=plain ;;
    rude-*)
        read -r password </dev/tty || {{ echo "me@$before: Permission denied (password)." >&2; exit 255; }}
        kind=plain ;;
    refused-*) echo "ssh: connect to host $before port 22: Connection refused" >&2; exit 255 ;;
    *) kind=${{before%%-*}} ;;
esac
exec {sys.executable} {FAKE_RELAYS} $kind
"""


@pytest.fixture(autouse=True)
def ssh(tmp_path, monkeypatch):
    path = tmp_path / "ssh"
    path.write_text(SSH)
    path.chmod(0o755)
    (tmp_path / "ssh-dir").mkdir()
    monkeypatch.setenv("OVERLAPTOP_SSH", str(path))
    monkeypatch.setenv("SSH_DIR", str(tmp_path / "ssh-dir"))
    return path


@pytest.fixture
def pool_of():
    """Makes pools of these hosts, each with the list of what it reports."""
    with ExitStack() as pools:

        def make(*words, **options):
            reported: list[str] = []
            pool = ConnectionPool([*map(Target.parse, words)], reported.append, **options)
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
    states = [connection.state.value for connection in pool.hosts]
    assert states == ["up", "down", "up", "down"]
    assert pool.hosts[0].jobs == JOBS


def test_at_most_four_are_logging_in_at_once_and_all_get_in(pool_of, tmp_path):
    pool, reported = pool_of(*(f"slow-{number}" for number in range(10)))
    pool.connect(interactive=False)
    assert len(reported) == 10
    assert all(connection.state is ConnectionState.UP for connection in pool.hosts)
    counted = list(map(int, (tmp_path / "ssh-dir" / "counted").read_text().split()))
    assert len(counted) == 10
    assert max(counted) <= AT_ONCE


@pytest.mark.parametrize(
    ("first", "nodes"),
    [
        ("root", ["root-1"]),
        ("plain", ["plain-1", "plain-2", "root-3"]),
    ],
)
def test_a_gathered_slurm_job_needs_one_srun(pool_of, monkeypatch, tmp_path, first, nodes):
    srun = tmp_path / "srun"
    act = f"node=${{word#--nodelist=}}; exec {sys.executable} {FAKE_RELAYS} ${{node%%-*}}"
    srun.write_text(f"#!/bin/sh\nfor word; do case $word in --nodelist=*) {act} ;; esac; done\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    names = [f"srun://77/{node}" for node in (f"{first}-1", "plain-2", "root-3")]
    pool, _ = pool_of(*names, "srun://78/plain-9")
    pool.connect(interactive=False)
    reached = [each.target.within for each in pool.hosts if each.target.place == "77"]
    assert reached == nodes


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
