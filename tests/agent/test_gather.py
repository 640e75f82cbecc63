"""An agent's part of --gather: when it asks its hub, and what it does with a refusal or without a store."""

import threading
from types import SimpleNamespace

import pytest

from overlaptop.agent.gather import HubGathering
from overlaptop.agent.placement import RankPlacement
from overlaptop.wire.joining import Gather, Gathered
from tests.processes import eventually


class Fakes:
    def __init__(self, rank, **place):
        values = {"local_rank": 0, "world_size": 2, "local_world_size": 1, "starts_hub": True, **place}
        self.place = RankPlacement("job-1", rank, host="here", **values)
        self.sender = SimpleNamespace(place=self.place, gathered=None, put_state=self._put)
        self.states, self.notices = [], []
        self.ending = threading.Event()
        self.gathering = HubGathering(lambda level, text: self.notices.append(text), self.ending)

    def _put(self, state):
        if state not in self.states:
            self.states.append(state)

    def serve(self, answer=None):
        self.sender.gathered = answer or self.sender.gathered
        self.gathering.serve(self.sender)


@pytest.fixture(autouse=True)
def master(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "node-a")


def test_first_rank_keeps_its_port_for_the_next_hub():
    fakes = Fakes(0)
    fakes.serve()
    fakes.serve(Gathered("192.0.2.1", 1234))
    fakes.serve()
    assert fakes.states == [Gather(0, True, "node-a", 0), Gather(0, True, "192.0.2.1", 1234)]


def test_a_refusal_is_said_once():
    fakes = Fakes(0)
    fakes.serve(Gathered("", 0, "no key"))
    fakes.serve()
    assert fakes.notices.count("--gather: no key") == 1
    assert fakes.states == [Gather(0, True, "node-a", 0)]


def test_a_loopback_address_of_two_nodes_is_refused(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    fakes = Fakes(0, local_world_size=2)  # by the address, all ranks are here
    fakes.serve()
    fakes.serve()
    [said] = fakes.notices
    assert "set it to the first node's address" in said
    assert fakes.states == []


@pytest.mark.parametrize(
    "place", [{"local_world_size": 2}, {"local_rank": 1, "starts_hub": False, "world_size": 4}]
)
def test_a_job_on_one_node_and_ranks_without_a_hub_ask_nothing(place):
    fakes = Fakes(int(not place.get("starts_hub", True)), **place)
    fakes.serve()
    assert (fakes.states, fakes.notices) == ([], [])


def test_a_store_that_fails_is_said_and_not_raised():
    fakes = Fakes(1)
    fakes.serve()
    eventually(lambda: fakes.notices)
    fakes.serve()
    assert len(fakes.notices) == 1
    assert fakes.notices[0].startswith("--gather: the job's store failed: ")
    assert fakes.states == []
