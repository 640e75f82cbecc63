"""The hub under bad peers and bad times: it goes on, it stays quiet, and it counts what it dropped."""

import os
import resource
import signal
import time
from pathlib import Path

from msgspec.structs import replace

from overlaptop.hub.dashboards import MAX_DASHBOARDS
from overlaptop.wire import commands
from overlaptop.wire.codec import MAX_FRAME_BYTES, encode, frame
from overlaptop.wire.commands import Command
from overlaptop.wire.joining import TurnedAway, Watch
from overlaptop.wire.messages import HubStatus, RankEnd, RankInfo, StepTotals, Welcome
from overlaptop.wire.protocol import READER_TIMEOUT_S
from tests.fleet.builders import BUCKET_CAP_MB, info
from tests.processes import eventually


def assert_is_quiet(pid):
    """A loop that spins takes a whole core; an idle hub a few ticks of the clock."""

    def cpu_s():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before_s = cpu_s()
    time.sleep(1)
    assert cpu_s() - before_s < 0.2


def assert_serves(rank, viewer, step):
    rank.send(rank.step(step))
    viewer.receive(StepTotals, lambda totals: (totals.rank, totals.step) == (rank.rank, step))


SETTING = commands.make_setting(BUCKET_CAP_MB, 50)
JUNK = {
    "an empty frame": frame(b""),
    "a hub's message": frame(encode(Watch(detail=True))),
    "an oversize length": (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    "a rank of another job": frame(encode(info(1, job="another"))),
}


def test_connection_that_begins_with_junk_is_closed_and_counted(watched, make_rank):
    _, good, viewer = watched
    for junk in JUNK.values():
        bad = make_rank(1)
        bad.socket.sendall(junk)
        assert bad.is_closed_by_hub()
    assert_serves(good, viewer, 1)
    assert viewer.receive(HubStatus, lambda status: status.dropped > 0).dropped == len(JUNK)
    assert viewer.of(RankEnd) == []


def test_a_rank_survives_a_few_bad_frames_but_not_many(watched):
    _, rank, viewer = watched
    rank.socket.sendall(JUNK["an empty frame"])
    rank.send(replace(rank.step(1), rank=1), SETTING)  # in another's name; what only dashboards send
    assert_serves(rank, viewer, 2)
    viewer.receive(HubStatus, lambda status: status.dropped == 3)
    assert (viewer.of(StepTotals), viewer.of(Command)) == ([rank.step(2)], [])
    rank.socket.sendall(JUNK["an empty frame"] * 20)
    assert rank.is_closed_by_hub()
    assert viewer.receive(RankEnd).clean is False


def test_a_hub_that_was_stopped_goes_on_where_it_was(watched):
    record, rank, viewer = watched
    assert_serves(rank, viewer, 0)
    os.kill(record.hub_pid, signal.SIGSTOP)
    rank.send(*map(rank.step, range(1, 500)))
    assert viewer.hub.send(SETTING)
    # Longer than this timeout: to the hub it looks as if its dashboards and its ranks had been silent.
    stopped_s = time.monotonic()
    viewer.until(lambda: time.monotonic() - stopped_s > READER_TIMEOUT_S)
    os.kill(record.hub_pid, signal.SIGCONT)
    viewer.receive(StepTotals, lambda totals: totals.step == 499)
    assert [totals.step for totals in viewer.of(StepTotals)] == list(range(500))
    viewer.await_statuses(2)
    assert not viewer.of(HubStatus)[-1].silent_ranks
    # No command is passed on that may have waited for long.
    kinds = [type(message) for message in viewer.messages if isinstance(message, Welcome | Command)]
    assert kinds == [Welcome]
    viewer.ask(other := commands.make_setting(BUCKET_CAP_MB, 60))
    assert rank.next_command().id == other.id


def test_dashboards_that_come_and_go_leave_nothing_behind(hubs, watched, make_viewer):
    record, rank, viewer = watched
    eventually(lambda: hubs.record().rank_pids)  # it writes no file after that

    def descriptors():
        return len(list(Path(f"/proc/{record.hub_pid}/fd").iterdir()))

    before = descriptors()
    for number in range(20):
        passer_by = make_viewer()
        passer_by.hub.watch([0])
        rank.send(rank.step(number))
        passer_by.receive(StepTotals, lambda totals, number=number: totals.step == number)
        passer_by.close()
    assert_serves(rank, viewer, 20)
    assert {totals.step for totals in viewer.of(StepTotals)} == set(range(21))
    eventually(lambda: descriptors() == before)
    assert_is_quiet(record.hub_pid)


def test_hub_without_descriptors_accepts_the_rank_later(watched, make_rank):
    record, first, viewer = watched
    soft, hard = resource.prlimit(record.hub_pid, resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path(f"/proc/{record.hub_pid}/fd").iterdir()}
    lowest_free = min(set(range(len(used) + 1)) - used)
    resource.prlimit(record.hub_pid, resource.RLIMIT_NOFILE, (lowest_free, hard))
    late = make_rank(1).greet()
    assert_is_quiet(record.hub_pid)
    assert_serves(first, viewer, 1)
    resource.prlimit(record.hub_pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert late.next_watch() is False
    viewer.receive(RankInfo, lambda info: info.rank == 1)
    assert_serves(first, viewer, 2)


def test_dashboard_too_many_waits_until_another_has_gone(hubs, make_viewer):
    hubs.start()
    others = [make_viewer() for _ in range(MAX_DASHBOARDS)]
    for viewer in others:
        viewer.receive(Welcome)
    late = make_viewer()
    assert late.receive(TurnedAway).reason == "64 dashboards watch this job: close one of them"
    assert late.of(Welcome) == []
    others[0].close()
    late.receive(Welcome)
