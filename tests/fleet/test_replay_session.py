"""A recording as a Session: what was known at each moment, once more."""

import io
from itertools import pairwise

import pytest

from overlaptop.commands.replay import print_records
from overlaptop.commands.stream import RecordWriter
from overlaptop.fleet.recorder import Recorder
from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.fleet.snapshot import HubState
from overlaptop.fleet.trouble import Kind, trouble_of
from overlaptop.recording.reader import open_recording
from overlaptop.wire.messages import GroupCalls, IssuedCall, RankStalled
from tests.recording.played import PlayedJob, played

from .builders import Clock, S, status
from .fakes import Hosts


def replay(path, **options):
    return ReplaySession(open_recording(path), **options)


def written(snapshots):
    out = io.StringIO()
    writer = RecordWriter(out, detail=True)
    for snapshot in snapshots:
        writer.write(snapshot)
    writer.end(snapshot)
    return out.getvalue().splitlines()


def known(snapshot):
    """What a screen shows, without what only the newest reader is handed."""
    names = ("at_ns", "hub_state", "ranks", "totals", "waits", "job")
    return [getattr(snapshot, name) for name in names]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.mcap"


def test_replay_gives_the_records_that_json_gave_live(clock, path, capsys):
    job = played(clock, path, 60)
    live = written(job.snapshots)
    assert print_records(replay(path), detail=True) == 0
    assert capsys.readouterr().out.splitlines() == live
    assert sum('"type": "step"' in line for line in live) == 120
    assert any('"type": "finding"' in line for line in live)
    assert any('"late_rank": 1' in line for line in live)


def test_seeking_shows_what_was_known_at_that_moment_however_it_was_reached(clock, path):
    job = played(clock, path, 400, after_s=1.0)
    session = replay(path)
    for at in (10, 390, 200, 10, 201):
        live = job.snapshots[at]
        shown = session.seek(live.at_ns)
        assert [view.last for view in shown.ranks] == [view.last for view in live.ranks]
        assert shown.totals.exposed_ns == live.totals.exposed_ns
        assert shown.waits.step == live.waits.step
    assert session.seek(0).at_ns == session.recording.first_ns
    assert session.seek(clock() + S).at_ns == clock()
    assert session.seek_step(123)
    assert session.tick().totals.step == 123
    assert not session.seek_step(9999)


def test_time_passes_with_the_speed_and_stands_while_paused(clock, path):
    job = played(clock, path, 40)
    ours = Clock()
    session = replay(path, speed=4.0, monotonic_s=ours.monotonic_s)
    ours.pass_s(1)
    fresh = session.tick()
    assert fresh.totals.step == 7  # 4 s of one step each half second
    assert [step.step for step in fresh.fresh if step.rank == 0] == list(range(8))
    assert session.tick().fresh == ()
    session.pause(True)
    ours.pass_s(60)
    assert known(session.tick()) == known(fresh)
    session.pause(False)
    ours.pass_s(60)
    last = session.tick()
    assert session.over
    assert last.recorded
    assert last.hub_state is HubState.LIVE  # the recording was stopped while its job went on
    assert known(last) == known(job.snapshots[-1])


def test_recording_begun_in_mid_job_begins_with_its_state_and_last_steps(clock, tmp_path):
    job = PlayedJob(clock, None)
    for number in range(20):
        job.step(number, late=1)
    for begun in (20, 40):
        job.recorder.begin(part := tmp_path / f"{begun}.mcap")
        for number in range(begun, begun + 20):
            job.step(number, late=1)
        job.recorder.end()
        live = job.snapshots[-1]
        shown = replay(part).seek(clock())
        assert (shown.job, shown.totals.step) == (live.job, begun + 19)
        assert [view.info for view in shown.ranks] == [view.info for view in live.ranks]
        assert begun - 20 < min(step.step for view in shown.ranks for step in view.history) < begun


def test_hang_is_shown_hours_after_its_last_step(clock, path):
    job = PlayedJob(clock, path)
    for number in range(40):
        job.step(number, late=1)
    groups = (GroupCalls("pg", (0, 1), (IssuedCall("allreduce_", 4, 41, clock()),)),)
    job.say(RankStalled(0, hung=True, groups=groups), RankStalled(1, hung=True), status(), after_s=10)
    for _ in range(400):
        job.say(status(), after_s=10)
    job.recorder.end()
    live, session = job.snapshots[-1], replay(path)
    shown = session.seek(clock())
    assert trouble_of(shown) == trouble_of(live)
    assert trouble_of(shown).kind is Kind.HUNG
    assert (shown.totals.step, shown.waits.step) == (39, 39)
    assert [view.detail for view in shown.ranks] == [view.detail for view in live.ranks]
    assert session.seek_step(39)
    assert clock() - session.at_ns > 4000 * S


def test_long_gap_takes_few_ticks(clock, path):
    job = PlayedJob(clock, path)
    job.step(0)
    job.step(1, after_s=3e8)  # ten years, as of a recorder that slept, or of two files put together
    job.recorder.end()
    snapshots = [snapshot.at_ns for _, snapshot in zip(range(5000), replay(path).play(), strict=False)]
    assert snapshots[-1] == clock()
    assert all(after - before <= 250_000_000 for before, after in pairwise(snapshots[:60]))


@pytest.mark.parametrize("damaged", [False, True])
def test_job_of_several_hosts_is_replayed_with_its_hosts_and_their_clocks(path, damaged):
    recorder = Recorder()
    two = Hosts("gpu-a", "gpu-b", tap=recorder)
    recorder.begin(path)
    snapshots = [two.live()]
    recorder.write(snapshots[0])
    for number in range(1, 80):
        two.go_on(number)
        snapshots.append(two.look(0.5))
        recorder.write(snapshots[-1])
    recorder.end()
    if damaged:
        data, first = bytearray(path.read_bytes()), open_recording(path).places[0]
        data[first.offset + first.length // 2] ^= 1
        path.write_bytes(data)
    replayed = replay(path)
    assert damaged or written(replayed.play()) == written(snapshots)
    live, shown = snapshots[-1], replayed.seek(snapshots[-1].at_ns)
    assert [(node.name, node.ranks, node.offset_ns, node.residual_ns) for node in shown.nodes] == [
        (node.name, node.ranks, node.offset_ns, node.residual_ns) for node in live.nodes
    ]
