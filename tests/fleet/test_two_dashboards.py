"""Two dashboards on one job do not fight: sessions on a real hub, ranks that obey one at a time."""

import os
import signal
import subprocess
import sys

import pytest
from msgspec.structs import replace

from overlaptop.fleet.job_session import JobSession
from overlaptop.wire import change_log, commands
from overlaptop.wire.knobs import KnobFacts
from tests.fleet.builders import BUCKET_CAP_MB
from tests.hub.conftest import Rank, eventually

KNOB = replace(BUCKET_CAP_MB, value=40, value_text="40")


class ObedientRank(Rank):
    """As the agent: busy while a change is under way, and the knob has the value that it was given."""

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
            if self.under_way is not None:
                under_way = f"{commands.in_words(self.under_way)} (by {self.under_way.by})"
                self.answer(command, "busy", text=f"another command is under way: {under_way}")
            else:
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


class Scene:
    """A job of two ranks, and dashboards on it."""

    def __init__(self):
        self.ranks = [ObedientRank(number) for number in (0, 1)]
        self.sessions = [JobSession(), JobSession()]
        self.searching = {}
        self.until(lambda: all(len(session.tick().knobs) == 1 for session in self.sessions))

    def until(self, probe):
        def look():
            for rank in self.ranks:
                rank.work()
            for session, search in self.searching.items():
                session.hold(search)
            for session in self.sessions:
                session.tick()
            return probe()

        return eventually(look)

    def search(self, session):
        self.searching[session] = search = commands.make_search(session.tick().knobs[0].knob)
        return search

    def send(self, session, value, search=None):
        command = commands.make_setting(KNOB, value, search=search.id if search else "")
        assert session.send(command) == ""
        return command

    def finish(self):
        self.until(lambda: all(rank.under_way for rank in self.ranks))
        for rank in self.ranks:
            rank.finish()

    def ended(self, session, command):
        def view():
            return next(
                (each for each in session.tick().commands if each.id == command.id and each.done), None
            )

        return self.until(view)

    @property
    def values(self):
        return [rank.knob.value for rank in self.ranks]

    def close(self):
        for each in (*self.sessions, *self.ranks):
            each.close()


@pytest.fixture
def scene(hubs):
    hubs.start("--search-lease-s=3")
    scene = Scene()
    yield scene
    scene.close()


def test_of_two_changes_at_the_same_time_one_is_busy_and_names_the_other(scene):
    mine, yours = scene.sessions
    first, second = scene.send(mine, 50), scene.send(yours, 100)
    both = [first, second]
    busy = scene.until(
        lambda: [
            command
            for command in both
            for each in mine.tick().commands
            if each.id == command.id and each.busy
        ]
    )
    scene.finish()
    (refused,) = busy
    made = next(command for command in both if command is not refused)
    for session in scene.sessions:
        assert scene.ended(session, made).state == "changed"
        view = scene.ended(session, refused)
        assert view.busy
        assert f"{commands.in_words(made)} (by {made.by})" in view.reason
    assert scene.values == [commands.argument(made, "value")] * 2
    outcomes = scene.until(lambda: len(log := change_log.read()) == 2 and log)
    assert sorted(change.outcome for change in outcomes) == ["busy", "changed"]


SEARCHER = """
import sys, time
from overlaptop.fleet.job_session import JobSession
from overlaptop.wire import commands
session = JobSession()
while not (knobs := session.tick().knobs):
    time.sleep(0.01)
search = commands.make_search(knobs[0].knob)
while (snapshot := session.tick()).search is None:
    session.hold(search)
    time.sleep(0.01)
session.send(commands.make_setting(knobs[0].knob, 400, search=search.id))
while True:
    session.hold(search)
    session.tick()
    time.sleep(0.01)
"""


def test_what_a_dashboard_has_changed_that_dies_while_it_searches_is_undone(scene):
    watching = scene.sessions[0]
    process = subprocess.Popen([sys.executable, "-c", SEARCHER])
    try:
        scene.until(lambda: watching.tick().search)
        scene.finish()
        scene.until(lambda: watching.tick().knobs[0].knob.value == 400)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    scene.finish()
    scene.until(lambda: watching.tick().search is None)
    assert scene.values == [40, 40]
    undone = watching.tick().commands[-1]
    assert undone.by.endswith(f"pid {process.pid} (silent; undone by the hub)")
    log = scene.until(lambda: len(log := change_log.read()) == 2 and log)
    assert [(change.was, change.becomes) for change in log] == [("40", "400"), ("400", "40")]
    assert log[1].search == log[0].search == undone.search
