"""What dashboards give is passed on, once, and what lasts is logged."""

from __future__ import annotations

import pytest

from overlaptop.hub.commands import CommandBroker
from overlaptop.jobs import change_log
from overlaptop.jobs.folder import job_dir
from overlaptop.wire import commands
from overlaptop.wire.codec import decode
from overlaptop.wire.commands import Command, CommandOutcome, CommandReport
from tests.fleet.builders import BUCKET_CAP_MB
from tests.fleet.fakes import record


class Scene:
    """A broker, the ranks and dashboards that receive from it, and a clock that only the test moves."""

    def __init__(self):
        job_dir("job-1", create=True)
        self.ranks, self.now_s = (0, 1), 0.0
        self.sent, self.published = [], []
        self.broker = CommandBroker(
            record(),
            connected_ranks=lambda: self.ranks,
            send_to_ranks=lambda payload: self.sent.append(commands.in_words(decode(payload))),
            publish=lambda payload: self.published.append(decode(payload)),
            clock_s=lambda: self.now_s,
        )

    def take(self, command):
        self.broker.take(command)
        self.broker.settle()

    def of(self, kind):
        return [each for each in self.published if isinstance(each, kind)]

    def end(self, command, state="changed"):
        for rank in self.ranks:
            report = CommandReport(rank, command.id, command.name, 1, state, 7, "")
            self.broker.receive(report)
        self.broker.settle()

    def at(self, now_s):
        self.now_s = now_s
        self.broker.tick()
        self.broker.settle()


@pytest.fixture
def scene(socket_dir):
    return Scene()


def test_command_goes_once_to_all_ranks_and_dashboards(scene):
    setting = commands.make_setting(BUCKET_CAP_MB, 50)
    trial = commands.make_trial(BUCKET_CAP_MB, 100, 20)
    for command in (setting, trial, setting, commands.make(commands.CAPTURE, {"steps": 1})):
        scene.take(command)
    assert scene.sent == ["set bucket_cap_mb 50", "trial bucket_cap_mb 100 (20 steps)", "capture (steps 1)"]
    assert [commands.in_words(each) for each in scene.of(Command)] == scene.sent


def test_change_is_logged_and_trial_is_not(scene):
    trial = commands.make_trial(BUCKET_CAP_MB, 100, 20)
    setting = commands.make_setting(BUCKET_CAP_MB, 50)
    for command, state in ((trial, "tried"), (setting, "changed")):
        scene.take(command)
        scene.end(command, state)
    assert [(outcome.stage, outcome.done) for outcome in scene.of(CommandOutcome)][-1] == ("changed", True)
    assert [change.command for change in change_log.read()] == [setting.id]
