"""What is written is read again, and what is damaged is left out and named."""

import os
import random
import signal
from types import SimpleNamespace

import pytest
from mcap.reader import make_reader
from mcap.writer import Writer

from overlaptop.commands import following
from overlaptop.commands.output import CommandError
from overlaptop.commands.record import record
from overlaptop.fleet.recorder import Recorder
from overlaptop.recording import writer
from overlaptop.recording.batch import PROFILE, Batch, NodeClock, packed
from overlaptop.recording.keep import Keep
from overlaptop.recording.reader import RecordingError, open_recording
from overlaptop.recording.writer import earlier_part
from overlaptop.wire.codec import frame
from overlaptop.wire.messages import RankEnd
from tests.commands.running import run_here
from tests.fleet.builders import Clock, S, status
from tests.recording.played import PlayedJob, played

HEADER = (
    b"\x89MCAP0\r\n\x01\x1c\x00\x00\x00\x00\x00\x00\x00\x0a\x00\x00\x00overlaptop\x0a\x00\x00\x00python-lib"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A recording of 35 s in chunks of 5 s."""
    path = tmp_path_factory.mktemp("whole") / "run.mcap"
    played(Clock(), path, 35, after_s=1.0)
    return path


def data_of(path):
    return [(batch.at_ns, batch.data) for batch in open_recording(path).batches() if batch.kind == "live"]


def test_batches_are_read_as_they_were_written(whole):
    recording = open_recording(whole)
    batches = list(recording.batches())
    assert (recording.damage, recording.nodes) == ((), ("",))
    assert [batch.at_ns for batch in batches] == sorted(batch.at_ns for batch in batches)
    live = [batch for batch in batches if batch.kind == "live"]
    assert len(live) == 36
    kinds = [type(message).__name__ for message in live[0].messages()]
    assert kinds[:3] == ["Welcome", "RankInfo", "RankInfo"]
    assert (whole.stat().st_mode & 0o777) == 0o600
    with whole.open("rb") as file:  # other programs read it by its index
        reader = make_reader(file)
        assert reader.get_header().profile == "overlaptop"
        assert {channel.topic for channel in reader.get_summary().channels.values()} == {"live/", "state/"}


def test_what_a_newer_program_wrote_is_left_out():
    known = packed([status()])
    batch = Batch(0, "", "live", known + frame(b"\x93\x01\x02\x03") + known)
    assert batch.messages() == [status(), status()]
    assert Batch(0, "", "live", b"\xff" * 99).messages() == []
    assert Batch(0, "", "node", b"{").node_clock() == NodeClock()


def test_file_cut_at_any_byte_is_read_up_to_its_last_whole_chunk(whole, tmp_path):
    data, every = whole.read_bytes(), data_of(whole)
    cut, dice = tmp_path / "cut.mcap", random.Random(1)
    ends = [place.offset + place.length for place in open_recording(whole).places]
    for at in [*dice.sample(range(len(data)), 300), *ends]:
        cut.write_bytes(data[:at])
        whole_chunks = sum(end <= at for end in ends)
        if not whole_chunks:
            with pytest.raises(RecordingError, match=r"no whole chunk|not a recording"):
                open_recording(cut)
            continue
        recording = open_recording(cut)
        assert len(recording.places) == whole_chunks
        found = data_of(cut)
        assert found == every[: len(found)]
        assert bool(recording.damage) == (at < len(data))


def test_flipped_byte_costs_one_chunk_and_is_named(whole, tmp_path):
    data, places = whole.read_bytes(), open_recording(whole).places
    flipped, dice = tmp_path / "flipped.mcap", random.Random(2)
    headers = [*range(places[2].offset - 9, places[2].offset), places[2].offset + 28]
    for at in [*dice.sample(range(8, len(data)), 300), *headers]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << dice.randrange(8)
        flipped.write_bytes(damaged)
        recording = open_recording(flipped)
        kept = len(recording.places)
        assert kept >= len(places) - 1
        assert kept == len(places) or len(recording.damage) == 1
        assert sum(each.after_gap for each in recording.places) <= 1
        assert recording.nodes == ("",)
        assert at not in headers or recording.places[2].after_gap


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("sensor_msgs/Image", "an MCAP file of another program"),
        (f"{PROFILE}/1", "made with protocol 1, this"),
    ],
)
def test_file_of_another_program_or_protocol_is_refused(schema, why, tmp_path):
    path = tmp_path / "other.mcap"
    with path.open("wb") as file:
        other = Writer(file)
        other.start()
        channel = other.register_channel("live/", "", other.register_schema(schema, "", b""))
        other.add_message(channel, 1, b"data", 1)
        other.finish()
    with pytest.raises(RecordingError, match=why):
        open_recording(path)


def test_what_is_no_recording_is_refused_in_one_line(tmp_path, whole):
    made = {name: tmp_path / f"{name}.mcap" for name in ("zeros", "behind", "fifo", "empty", "short")}
    for name, head in (("zeros", b""), ("behind", HEADER)):
        with made[name].open("wb") as file:
            file.write(head)
            file.truncate(1 << 30)
    os.mkfifo(made["fifo"])
    made["empty"].touch()
    made["short"].write_bytes(whole.read_bytes()[:100])
    for path in (*made.values(), "/dev/zero", tmp_path, tmp_path / "none"):
        done = run_here("replay", path, "--once")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


def test_long_recording_keeps_its_last_part_and_the_one_before(tmp_path):
    path, clock = tmp_path / "run.mcap", Clock()
    played(clock, path, 200, keep=Keep(ns=20 * S))
    parts = [open_recording(each) for each in (earlier_part(path), path)]
    assert len(list(tmp_path.iterdir())) == 2
    assert "the part before is in" in run_here("replay", path, "--once").stderr
    lengths_s = [(each.last_ns - each.first_ns) / 1e9 for each in parts]
    assert 20 <= lengths_s[0] <= 30
    assert lengths_s[1] <= 25
    assert parts[1].last_ns == clock()
    first = next(parts[1].batches())
    assert first.kind == "state"  # each part can be read by itself
    kinds = [type(each).__name__ for each in first.messages()]
    assert list(dict.fromkeys(kinds)) == ["Welcome", "RankInfo", "StepTotals", "StepDetail", "HubStatus"]


class Playing:
    """A session in which each tick brings a step, rank 1 late, until the job ends."""

    def __init__(self, job, steps):
        self.job, self.steps, self.made = job, steps, 0
        self.watch, self.send = job.session.watch, job.session.send

    def tick(self):
        self.made += 1
        if self.made > self.steps:
            ends = (RankEnd(rank, self.job.clock(), clean=True, exit_code=0) for rank in (0, 1))
            self.job.send(*ends, status(ended=True))
        else:
            self.job.make(self.made, late=1, after_s=2.5)
        return self.job.session.tick()


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(following, "TICK_S", 0.0)
    return PlayedJob(Clock(), None)


def test_recorder_tells_the_hub_of_each_finding_once(job, tmp_path):
    assert record(Playing(job, 60), job.recorder, tmp_path / "run.mcap", Keep()) == 0
    told = [each.rule for each in job.host.hub.sent]
    assert "slow_compute" in told
    assert len(told) == len(set(told))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signal_in_the_middle_of_a_write_leaves_the_file_whole(job, tmp_path, monkeypatch, number, status):
    add = writer.Writer.add_message

    def interrupted(*arguments, **named):
        signal.raise_signal(number)
        return add(*arguments, **named)

    monkeypatch.setattr(writer.Writer, "add_message", interrupted)
    path = tmp_path / "run.mcap"
    assert record(Playing(job, 10_000), job.recorder, path, Keep()) == status
    assert open_recording(path).damage == ()


def test_recording_ends_while_the_disk_has_room_for_the_job(job, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.mcap"
    almost_full = SimpleNamespace(f_bavail=3, f_frsize=1, f_blocks=99)
    monkeypatch.setattr(writer.os, "fstatvfs", lambda _: almost_full)
    with pytest.raises(CommandError, match=r"the recording ended: .*: too little of the disk is left"):
        record(Playing(job, 10_000), job.recorder, path, Keep())
    assert open_recording(path).damage == ()
    assert "run.mcap" in capsys.readouterr().err


def test_file_that_is_there_is_not_overwritten(job, tmp_path):
    path = tmp_path / "run.mcap"
    path.write_text("mine")
    with pytest.raises(CommandError, match="file exists"):
        record(job.session, Recorder(), path, Keep())
    assert path.read_text() == "mine"


def test_bad_keep_is_a_usage_error():
    done = run_here("record", "--keep=1TB")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
