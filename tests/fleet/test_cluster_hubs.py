"""A ClusterSession on two real hubs of one job, each in a socket directory of its own as on two hosts."""

import contextlib
import os
import shutil
import signal
import tempfile

import pytest
from msgspec.structs import replace

from overlaptop.fleet.cluster_session import ClusterSession
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire import commands, endpoints
from overlaptop.wire.hub_connection import LocalHubConnection
from overlaptop.wire.knobs import KnobFacts
from tests.fleet.builders import BUCKET_CAP_MB
from tests.hub.conftest import Hubs, Rank, eventually

LEASE_S = 3
KNOB = replace(BUCKET_CAP_MB, value=40, value_text="40")


class ObedientRank(Rank):
    """As the agent: its knob has the value that it was given."""

    def __init__(self, rank):
        super().__init__(rank)
        self.info = replace(self.info, control_allowed=True)
        self.greet()
        self.knob = KNOB
        self.under_way = None
        self.send(KnobFacts(rank, (self.knob,)), self.step(1))

    def work(self):
        """Take what has come."""
        self.listen()
        for command in self.commands:
            self.under_way = command
            self.answer(command, "accepted")
        self.commands.clear()

    def finish(self):
        """What is under way comes to its end."""
        command, self.under_way = self.under_way, None
        value = self.knob.original_text
        if command.name == commands.SET:
            value = str(commands.argument(command, "value"))
        was, self.knob = self.knob.value_text, replace(self.knob, value=int(value), value_text=value)
        self.answer(command, "changed", was=was, becomes=value)
        self.send(KnobFacts(self.rank, (self.knob,)))


class Machine:
    """A socket directory with a hub and one rank, as the Host that it would be from elsewhere."""

    up, connecting, known, readonly = True, False, True, False
    since_s, note, detail = 0.0, "", ""
    offset_ns = residual_ns = bytes_per_s = None

    def __init__(self, name, rank, monkeypatch):
        self.name = name
        self._dir = tempfile.mkdtemp(prefix="ot-", dir="/tmp")
        self._monkeypatch = monkeypatch
        self._hubs = Hubs()
        with self.there():
            self.record = self._hubs.start(f"--search-lease-s={LEASE_S}")
            self.rank = ObedientRank(rank)

    @contextlib.contextmanager
    def there(self):
        self._monkeypatch.setenv("OVERLAPTOP_DIR", self._dir)
        yield
        self._monkeypatch.delenv("OVERLAPTOP_DIR")

    def poll(self):
        pass

    def list_jobs(self):
        with self.there():
            return endpoints.list_jobs()

    def open_link(self, record):
        with self.there():
            return LocalHubConnection(record)

    def is_gone(self, record):
        return record.gone

    def replace_hub(self):
        """It dies, and another takes its place: the rank comes to it, and tells of later steps."""
        os.kill(self.record.hub_pid, signal.SIGKILL)
        self.rank.close()
        with self.there():
            self.record = self._hubs.start(f"--search-lease-s={LEASE_S}")
            self.rank = ObedientRank(self.rank.rank)

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

    @property
    def ranks(self):
        return [machine.rank for machine in self.machines]

    def until(self, probe):
        """The first Snapshot for which this holds; ranks take what comes meanwhile."""

        def look():
            for rank in self.ranks:
                rank.work()
            snapshot = self.session.tick()
            self.fresh += [(step.rank, step.step) for step in snapshot.fresh]
            return probe(snapshot) and snapshot

        return eventually(look)

    def until_known(self):
        return self.until(lambda seen: len(seen.knobs) == 1 and not seen.knobs[0].refusal)

    def obey(self):
        """What was sent came to every rank, and is made; returns what each was sent."""
        self.until(lambda _: all(rank.under_way for rank in self.ranks))
        obeyed = [rank.under_way for rank in self.ranks]
        for rank in self.ranks:
            rank.finish()
        return obeyed


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


def test_a_hub_that_is_replaced_doubles_no_step_and_leaves_the_other_node_alone(scene):
    scene.until_known()
    first, second = scene.machines
    second.replace_hub()
    first.rank.send(first.rank.step(2))
    second.rank.send(second.rank.step(2))
    scene.until(lambda seen: all(view.last.step == 2 for view in seen.ranks))
    seen = scene.until(lambda seen: all(node.link is LinkState.LIVE for node in seen.nodes))
    assert sorted(scene.fresh) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert not any(view.node_lost for view in seen.ranks)


def test_a_search_whose_searcher_dies_is_undone_on_all_nodes_by_one_command(scene):
    search = commands.make_search(scene.until_known().knobs[0].knob)

    def taken(seen):
        scene.session.hold(search)
        return seen.search == search

    scene.until(taken)
    assert scene.session.send(commands.make_setting(KNOB, 100, search=search.id)) == ""
    scene.obey()
    scene.session.close()  # and says no more

    undoing = scene.obey()
    assert {(command.id, commands.in_words(command)) for command in undoing} == {
        (f"{search.id}-undo", "set bucket_cap_mb 40")
    }
    assert [rank.knob.value for rank in scene.ranks] == [40, 40]
