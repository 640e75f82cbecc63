"""An agent's part of --gather: when it asks its hub, and what it does with a refusal or without a store."""

import threading
from types import SimpleNamespace

import pytest

from overlaptop.agent.gather import HubGathering
from overlaptop.agent.placement import RankPlacement
from overlaptop.wire.joining import Gather, Gathered
from tests.processes import eventually


@pytest.fixture
def serve(monkeypatch):
    """``serve(*answers, ...)``: a rank asks once for each answer of its hub's; its states and notices."""
    monkeypatch.setenv("MASTER_ADDR", "node-a")

    def asks(*answers, rank=0, **place):
        place = {"local_rank": 0, "world_size": 2, "local_world_size": 1, "starts_hub": True, **place}
        states, notices = {}, []
        sender = SimpleNamespace(
            place=RankPlacement("job-1", rank, host="here", **place),
            put_state=lambda state: states.setdefault(state),
        )
        gathering = HubGathering(lambda level, text: notices.append(text), threading.Event())
        for sender.gathered in answers:
            gathering.serve(sender)
        return [*states], notices

    return asks


def test_first_rank_keeps_its_port_for_the_next_hub(serve):
    states, _ = serve(None, Gathered("192.0.2.1", 1234), None)
    assert states == [Gather(0, True, "node-a", 0), Gather(0, True, "192.0.2.1", 1234)]


def test_a_refusal_is_said_once(serve):
    refused = Gathered("", 0, "no key")
    states, notices = serve(refused, refused)
    assert (states, notices.count("--gather: no key")) == ([Gather(0, True, "node-a", 0)], 1)


def test_a_loopback_address_of_two_nodes_is_refused(serve, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    states, [said] = serve(None, None, local_world_size=2)  # by the address, all ranks are here
    assert "set it to the first node's address" in said
    assert states == []


@pytest.mark.parametrize(
    "place", [{"local_world_size": 2}, {"rank": 1, "local_rank": 1, "starts_hub": False, "world_size": 4}]
)
def test_a_job_on_one_node_and_ranks_without_a_hub_ask_nothing(serve, place):
    assert serve(None, **place) == ([], [])


def test_a_store_that_fails_is_said_and_not_raised(serve):
    states, notices = serve(None, None, rank=1)
    eventually(lambda: notices)
    assert [each.startswith("--gather: the job's store failed: ") for each in notices] == [True]
    assert states == []
