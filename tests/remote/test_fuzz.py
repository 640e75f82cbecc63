"""Whatever a relay and a hub send: the client shows what it knows of it, in bounds, and goes on.

From bytes through connection and session to the text of the commands without a screen.
"""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.fleet.job_state import MAX_NOTICES
from overlaptop.fleet.rank_state import RECENT_DETAILS
from overlaptop.fleet.snapshot import HubState
from overlaptop.fleet.window import HISTORY_STEPS
from overlaptop.remote.host import MAX_SAMPLE_CHARS
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.commands import CommandOutcome
from overlaptop.wire.devices import Unknown
from overlaptop.wire.messages import RankInfo
from tests.remote.whole_client import JOB, FakeHubSocket, WholeClient, framed, no_processes
from tests.wire.examples import DETAIL, MESSAGES, SAMPLE, messages, plain

__all__ = ["no_processes"]  # a fixture
COMMAND_ID = "20260101-000000-abcdef"
INFO = RankInfo(JOB, 0, 0, 4, "far", 7, "t.py", "cuda:0", "nccl", "kernels", "", True, 1, "2.13")
few_ranks = st.integers(0, 3)
passed_s = st.sampled_from((0.0, 0.02, 0.6, 3.0, 20.0))
# Ranks that are met again, of the job that was asked for: else nothing comes of most messages.
likely = st.sampled_from(list(MESSAGES)).flatmap(MESSAGES.__getitem__)


changes = st.tuples(st.integers(0, 24), plain)  # A field, and any value for it


@st.composite
def of_this_job(draw):
    message = draw(likely)
    changed = {"rank": draw(few_ranks)} if hasattr(message, "rank") else {}
    if isinstance(getattr(message, "job", None), str):
        changed["job"] = JOB
    if isinstance(message, CommandOutcome):
        changed["command"] = COMMAND_ID
    return replace(message, **changed)


pytestmark = pytest.mark.usefixtures("no_processes")


def begun():
    client = WholeClient()
    client.begin()
    assert client.snapshot.hub_state is HubState.LIVE
    return client


def has_kept_its_head(client):
    page = client.words()
    assert all(line.isprintable() for line in page.split("\n"))
    assert client.host.reason.isprintable()
    snapshot = client.snapshot
    assert len(snapshot.notices) <= MAX_NOTICES
    for view in snapshot.ranks:
        assert len(view.history) <= HISTORY_STEPS
        assert len(view.details) <= RECENT_DETAILS


@settings(max_examples=25)
@given(st.lists(st.tuples(messages, passed_s), max_size=12))
def test_any_messages_of_a_relay_in_any_order(said):
    client = begun()
    for message, seconds in said:
        client.receive(framed(message), passed_s=seconds)
    has_kept_its_head(client)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(of_this_job() | messages, passed_s, st.none() | st.tuples(st.integers(0, 24), plain))
    )
)
def test_any_messages_of_a_hub_are_taken_or_counted(said):
    client = begun()
    bad = 0
    for message, seconds, change in said:
        payload = encode(message)
        if change is not None:
            row = msgpack.unpackb(payload)
            row[min(change[0], len(row) - 1)] = change[1]
            payload = msgpack.packb(row)
        try:
            decode(payload)
        except WireError:
            bad += 1
        client.hear(payload, passed_s=seconds)
    has_kept_its_head(client)
    socket, *others = FakeHubSocket.made
    if socket.readers and not others:  # else the connection was lost, for it was silent
        assert socket.readers[b""].dropped >= bad


# What could fill the memory


def test_timelines_that_nobody_asked_for_are_not_kept():
    client = begun()
    client.session.watch({0})
    client.hear(INFO, replace(INFO, rank=1))
    client.hear(*(replace(DETAIL, rank=rank) for rank in (0, 1, 2)))
    client.hear(*(replace(DETAIL, rank=rank, step=2) for rank in (0, 1, 2)))
    kept = {view.rank: [detail.step for detail in view.details] for view in client.snapshot.ranks}
    assert kept == {0: [DETAIL.step, 2], 1: [], 2: [], 3: []}


def test_sample_with_too_many_words_is_skipped():
    client = begun()
    client.hear(INFO)
    long = replace(SAMPLE, unknown=(Unknown("x" * 100, "y" * MAX_SAMPLE_CHARS),))
    client.hear(replace(SAMPLE, at_ns=1), replace(long, at_ns=2), replace(SAMPLE, at_ns=3))
    first, *others = client.snapshot.ranks[0].samples
    assert [sample.at_ns - first.at_ns for sample in others] == [2]
