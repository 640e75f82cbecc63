"""Another user of this machine: nothing of a job is open to them, and nobody believes their hub."""

import os
import socket
import stat

import pytest

from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting.sender import Sender
from overlaptop.jobs.folder import JobFolderError, job_dir
from overlaptop.jobs.hub_socket import LocalHubConnection
from overlaptop.wire.commands import make_setting
from overlaptop.wire.knobs import KnobFacts
from overlaptop.wire.messages import StepTotals
from tests.fleet.builders import BUCKET_CAP_MB as KNOB
from tests.fleet.builders import info
from tests.fleet.fakes import record
from tests.hubs import KEY, hubs, make_rank, make_viewer, watched
from tests.processes import eventually

__all__ = ["hubs", "make_rank", "make_viewer", "watched"]  # fixtures

STRANGER = 54_321


@pytest.fixture
def strangers_socket(socket_dir):
    """``strangers_socket(name)``: a socket in the job's folder, on which the stranger listens."""
    if os.geteuid():
        pytest.skip("only root can listen as another user")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:

        def listen(name):
            listener.bind(str(job_dir(KEY, create=True) / name))
            os.seteuid(STRANGER)  # the system notes the user in listen()
            try:
                listener.listen()
            finally:
                os.seteuid(0)
            return listener

        yield listen


def test_a_rank_tells_nothing_to_another_users_hub(strangers_socket, caplog):
    strangers_socket("ranks.sock")
    sender = Sender(RankPlacement(KEY, 0, 0, 1, "h", starts_hub=False), "train.py")
    sender.introduce(info())
    eventually(lambda: sender.pump() or caplog.text)
    assert f"uid {STRANGER}, not you, listens on the job's socket" in caplog.text
    assert sender.connections == 0


def test_a_dashboard_joins_no_hub_of_another_user(strangers_socket):
    strangers_socket("dash-1.sock")
    with pytest.raises(JobFolderError, match=f"uid {STRANGER}, not you, listens on the job's socket"):
        LocalHubConnection(record(KEY, dashboard_socket="dash-1.sock"))


def test_every_file_and_socket_of_a_job_is_closed_to_others(watched, socket_dir):
    """Also while their folder is open to others, by mistake."""
    _, rank, viewer = watched
    rank.send(rank.step(1), KnobFacts(0, (KNOB,)))
    viewer.receive(StepTotals)
    command = viewer.ask(make_setting(KNOB, 50))
    rank.answer(rank.next_command())
    viewer.outcome_of(command)
    found = list(socket_dir.rglob("*"))
    assert sum(path.is_socket() for path in found) == 3
    assert {path.name for path in found} >= {"job.json", "hub.log", "changes.jsonl"}
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in found)
