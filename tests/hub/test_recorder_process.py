"""A job that is recorded from its start, by a process beside its hub."""

import resource

import pytest

from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.fleet.snapshot import HubState
from overlaptop.wire.messages import Notice, RankEnd
from tests.fleet.builders import step
from tests.processes import eventually
from tests.recording.played import whole


def test_recorder_writes_the_job_from_its_first_step_to_its_end(hubs, make_rank, tmp_path):
    hubs.start(f"--record={tmp_path / 'new'}", "--linger-s=5")
    for number in (0, 1):
        rank = make_rank(number).greet()
        rank.send(*(step(number, each) for each in range(30)))
        rank.send(RankEnd(number, 1, clean=True, exit_code=0))
        rank.close()
    (path,) = eventually(lambda: [*(tmp_path / "new").glob("job-1-*.mcap")])
    recording = eventually(lambda: whole(path))
    snapshot = ReplaySession(recording).seek(recording.last_ns)
    assert snapshot.hub_state is HubState.ENDED
    assert [[each.step for each in view.history] for view in snapshot.ranks] == [list(range(30))] * 2


@pytest.mark.parametrize("fault", ["file", "full disk"])
def test_recording_that_fails_is_reported_and_the_hub_goes_on(
    hubs, make_rank, make_viewer, tmp_path, fault
):
    folder = tmp_path / "folder"
    if fault == "file":
        folder.touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        hubs.start(f"--record={folder}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    rank, viewer = make_rank(0).greet(), make_viewer()
    viewer.await_ranks(1)

    def complaint():
        rank.send(*(Notice(0, each, "info", f"{each} {'x' * 1000}") for each in range(100)))
        viewer.poll()
        return next((each.text for each in viewer.of(Notice) if each.level == "warning"), None)

    words = "file too large" if fault == "full disk" else "file exists"
    assert eventually(complaint).endswith(words)
    viewer.await_statuses(1)
