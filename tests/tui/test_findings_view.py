"""What is found of a job: the list, the selected finding, and when it is looked for."""

from overlaptop.findings import find
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.trials.effect import Effect
from overlaptop.tui.model.options import LOOK_EVERY_NS
from overlaptop.tui.rank.screen import RankScreen
from overlaptop.wire.messages import GroupCalls, IssuedCall, RankEnd, RankStalled
from tests.fleet.builders import T0, info, status, unmeasured, welcome
from tests.fleet.fakes import FakeSession

from .fakes import opened, running_job, screen_of, shown, text_of
from .waits import say_step, waiting_job


def found(number, **changes):
    made = {
        "title": f"cause {number}",
        "measured": f"what was measured of cause {number}",
        "advice": f"set knob={number}",
        "certainty": Certainty.POSSIBLE,
        "rule": f"rule_{number}",
        "ranks": (number,),
    }
    return Finding(**made | changes)


def drawn(view, width=100):
    return "\n".join(text_of(line).rstrip() for line in view.draw(width, 18))


async def test_finding_is_told_to_the_hub_once_and_enter_opens_its_rank():
    async with opened(waiting_job()) as (app, pilot):
        await shown(app, pilot, "f")
        await shown(app, pilot, "enter", rest_s=3)
        assert app.dashboard.session.found == ["slow_compute"]
        assert isinstance(app.screen, RankScreen)
        assert app.dashboard.state.selected.rank == 2


async def test_findings_of_a_failed_job_are_below_its_failure(monkeypatch):
    monkeypatch.setattr(find, "find", lambda _evidence: (found(1), found(2)))
    session = waiting_job()
    async with opened(session) as (app, pilot):
        assert "of the steps before" not in await shown(app, pilot, "f")
        session.say(RankEnd(1, T0 + 1, True, "ValueError: boom"))
        lines = (await shown(app, pilot)).splitlines()
        at = next(number for number, line in enumerate(lines) if "of the steps before" in line)
        assert "rank 1 failed: ValueError: boom" in lines[at - 2]
        await pilot.click(offset=(5, next(row for row in range(at, at + 9) if "cause 2" in lines[row])))
        assert app.screen._view.selected.rule == "rule_2"


async def test_hung_job_without_findings_says_who_hangs_and_what_to_do():
    session = FakeSession(welcome(), status(), info(0), info(1), unmeasured(0, 0), unmeasured(1, 0))
    session.clock.pass_s(150)
    for rank, sequence, stack in ((0, 57, ()), (1, 56, ("train.py:88 load_batch",))):
        calls = GroupCalls("0 default_pg", (0, 1), (IssuedCall("allreduce_", 25 << 20, sequence, T0),))
        session.say(RankStalled(rank, True, (calls,), stack))
    page = " ".join((await screen_of(session, "f", size=(100, 30))).split())
    assert "rank 1 has not entered allreduce 25.0 MiB: train.py:88 load_batch; rank 0 waits" in page
    assert "to do the line of the script says what runs instead of the collective" in page
    assert "Findings of the steps before No findings. " in page


async def test_long_list_keeps_its_cursor_when_figures_change():
    async with opened(running_job()) as (app, pilot):
        await shown(app, pilot, "f")
        state, view = app.dashboard.state, app.screen._view
        state.findings = tuple(found(number) for number in range(20))
        assert "… 1" in drawn(view, 60)
        view.move(7)
        state.findings = tuple(reversed(state.findings))
        assert view.selected.rule == "rule_7"
        view.move(20)
        lines = drawn(view, 60).splitlines()
        assert lines[lines.index("") - 1].endswith("cause 0")


async def test_finding_has_the_result_of_a_delay_of_its_rank():
    async with opened(running_job()) as (app, pilot):
        await shown(app, pilot, "f")
        state, view = app.dashboard.state, app.screen._view
        state.findings, state.slopes = (found(1), found(2)), {1: Effect(0.93, 0.85, 1.01, 14)}
        assert "slope 0.93 (0.85 to 1.01): share of a delay" in " ".join(drawn(view).split())
        view.move(1)
        assert "slope" not in drawn(view)


async def test_findings_are_refreshed_at_intervals_unless_paused():
    session = waiting_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        first = app.dashboard.state.findings
        await shown(app, pilot)
        assert app.dashboard.state.findings is first
        await shown(app, pilot, "space", rest_s=LOOK_EVERY_NS / 1e9)
        assert app.dashboard.state.findings is first
        assert "finding f" not in await shown(app, pilot, "left_curly_bracket")
        for number in range(8, 16):
            say_step(session, number, late=3)
        await shown(app, pilot, "space")
        assert app.dashboard.state.findings is not first
