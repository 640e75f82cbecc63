"""A ClusterSession on two real hubs of one job, each in a socket directory of its own as on two hosts."""

import contextlib
import os
import shutil
import signal
import tempfile
from types import SimpleNamespace

import pytest

from overlaptop.fleet.cluster_session import ClusterSession
from overlaptop.fleet.snapshot import HubState
from overlaptop.jobs.hub_connection import LocalHubConnection
from overlaptop.jobs.record import list_jobs
from tests.hubs import Hubs, Rank
from tests.processes import eventually


class Machine:
    """A socket directory with a hub and one rank, as the Host that it would be from elsewhere."""

    ready, connecting, known, readonly = True, False, True, False
    since_s, note, detail, gathered = 0.0, "", "", ()
    clock = SimpleNamespace(offset_ns=None, residual_ns=None)
    bytes_per_s = None

    def __init__(self, name, rank, monkeypatch):
        self.name = name
        self._dir = tempfile.mkdtemp(prefix="ot-", dir="/tmp")
        self._monkeypatch = monkeypatch
        self._hubs = Hubs()
        with self.there():
            self.record = self._hubs.start()
            self.rank = self._new_rank(rank)

    @staticmethod
    def _new_rank(number):
        rank = Rank(number).greet()
        rank.send(rank.step(1))
        return rank

    @contextlib.contextmanager
    def there(self):
        self._monkeypatch.setenv("OVERLAPTOP_DIR", self._dir)
        yield
        self._monkeypatch.delenv("OVERLAPTOP_DIR")

    def maintain(self):
        pass

    def list_jobs(self):
        with self.there():
            return list_jobs()

    def open_hub(self, record):
        with self.there():
            return LocalHubConnection(record)

    def is_gone(self, record):
        return record.gone

    def replace_hub(self):
        """It dies, and another takes its place: the rank comes to it, and tells of later steps."""
        os.kill(self.record.hub_pid, signal.SIGKILL)
        self.rank.close()
        with self.there():
            self.record = self._hubs.start()
            self.rank = self._new_rank(self.rank.rank)

    def close(self):
        pass

    def end(self):
        self.rank.close()
        with self.there():
            self._hubs.end_all()
        shutil.rmtree(self._dir, ignore_errors=True)


class Scene:
    """A job of two ranks on two machines, and a dashboard."""

    def __init__(self, machines):
        self.machines = machines
        self.session = ClusterSession(machines)
        self.fresh = []

    def until(self, probe):
        """The first Snapshot for which this holds."""

        def look():
            snapshot = self.session.tick()
            self.fresh += [(step.rank, step.step) for step in snapshot.fresh]
            return probe(snapshot) and snapshot

        return eventually(look)


@pytest.fixture
def scene(monkeypatch):
    with contextlib.ExitStack() as stack:
        machines = []
        for rank, name in enumerate(("gpu-a", "gpu-b")):
            machines.append(Machine(name, rank, monkeypatch))
            stack.callback(machines[-1].end)
        scene = Scene(machines)
        stack.callback(scene.session.close)
        yield scene


def test_replaced_hub_doubles_no_step_and_disturbs_no_other(scene):
    scene.until(lambda seen: len(scene.fresh) == 2)
    first, second = scene.machines
    second.replace_hub()
    first.rank.send(first.rank.step(2))
    second.rank.send(second.rank.step(2))
    scene.until(lambda seen: all(view.last.step == 2 for view in seen.ranks))
    seen = scene.until(lambda seen: all(node.hub_state is HubState.LIVE for node in seen.nodes))
    assert sorted(scene.fresh) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert not any(view.node_lost for view in seen.ranks)
