"""The dashboard on a finished trace: a picture that stands still."""

from pathlib import Path

from overlaptop.commands.analyze import session_of
from overlaptop.fleet.snapshot import LinkState
from overlaptop.formats.job import analyze
from overlaptop.timeline.lanes import LaneRules
from tests.cli.traces import kernel, small_job, write
from tests.tui.fakes import app_of, screen_lines, screen_text


async def test_the_dashboard_shows_the_trace_and_stands_still(tmp_path: Path) -> None:
    session = session_of(analyze(small_job(tmp_path), LaneRules()))
    app = app_of(session)
    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.pause(0.3)
        lines = screen_lines(app)
        assert lines[0].rstrip().endswith("■ trace")
        assert "2 ranks" in lines[0]
        assert lines[1].startswith(" kernels: torch.profiler trace")
        assert "overlap 50.0 %" in lines[2]
        page = "\n".join(lines)
        assert "rank 0  step 6   100 µs" in page
        assert "each column one step" in page
        for never in ("live", "since", "ago", "waiting"):
            assert never not in page
        await pilot.pause(0.6)
        assert screen_lines(app) == lines
        await pilot.press("enter")
        await pilot.pause()
        assert "device NVIDIA H200   backend nccl 2.28.9" in screen_text(app)
        assert "pid" not in screen_text(app).splitlines()[1]
        await pilot.press("o")  # there are no jobs to turn to
        await pilot.pause()
        assert "torchrun" not in screen_text(app)
        await pilot.press("c")
        await pilot.pause()
        assert "a job that is over cannot be captured" in [each.message for each in app._notifications]
        await pilot.press("q")
    assert app.return_code == 0


async def test_a_trace_in_which_nothing_took_any_time_is_shown_as_that(tmp_path: Path) -> None:
    session = session_of(analyze(write(tmp_path / "rank3.json", kernel(5, 0), rank=3), LaneRules()))
    app = app_of(session)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.pause(0.3)
        assert "the trace of rank 3 holds no step" in screen_text(app)


def test_a_session_of_a_trace_hands_its_steps_to_nobody_twice(tmp_path: Path) -> None:
    session = session_of(analyze(small_job(tmp_path), LaneRules()))
    picture = session.tick()
    assert session.tick() is picture
    assert (picture.link, picture.fresh, session.jobs) == (LinkState.TRACE, (), ())
    assert [len(view.history) for view in picture.ranks] == [2, 2]
    assert not any(view.stale or view.ended for view in picture.ranks)
    assert [notice.text for notice in picture.notices] == []


def test_missing_ranks_are_a_notice_and_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.json", kernel(0, 10), rank=1, world_size=20)
    picture = session_of(analyze(tmp_path, LaneRules())).tick()
    assert [view.rank for view in picture.ranks] == [1]
    assert [notice.text for notice in picture.notices] == [
        "no trace of rank 0, 2, 3, 4, 5, 6, 7, 8 and 11 more of 20"
    ]
