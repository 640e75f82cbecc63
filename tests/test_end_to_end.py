"""The whole of it: a job under torchrun, an agent in each rank, its hub, and the app reading from it."""

import re
import time

from overlaptop.fleet.job_session import JobSession
from overlaptop.launch.launcher import JobPlacement, Launcher
from overlaptop.report.who_is_late import who_is_late
from overlaptop.tui.app import OverlaptopApp
from overlaptop.workloads.catalog import find
from tests.processes import PATIENCE_S, eventually
from tests.tui.fakes import screen_text

OPTIONS = ("--layers", "2", "--width", "128", "--batch", "1", "--data-ms", "30")


async def until(pilot, holds):
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, screen_text(pilot.app)
        await pilot.pause(0.05)
    return found


async def test_dashboard_gets_each_ranks_history_all_timelines_and_the_end(socket_dir, traces, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    with Launcher(find("ddp").path, OPTIONS, JobPlacement(2, "gloo")) as job:
        job.start()
        session = JobSession()
        eventually(
            lambda: (ranks := session.tick().ranks) and all(len(each.history) > 20 for each in ranks)
        )
        session.close()
        opened_ns, session = time.time_ns(), JobSession()
        app = OverlaptopApp(session)
        async with app.run_test(size=(160, 45)) as pilot:
            for words in (
                r"rank 0 +step [\d,]+ .* forward .* ms", "│allreduce", " backward ", "workloads/ddp.py",
                "2 ranks", "gloo · host", "● live",
            ):  # fmt: skip
                await until(pilot, lambda words=words: re.search(words, screen_text(app)))
            for view in app.dashboard.latest.ranks:
                earlier = [step for step in view.history if step.start_ns + step.step_ns < opened_ns]
                assert len(earlier) >= 10
                assert any(step.overlap is not None for step in earlier)
            # What the screen shows may be older than the latest Snapshot.
            shown = await until(pilot, lambda: (of := app.dashboard.state.snapshot).wait_window and of)
            assert not who_is_late(shown).words.startswith("who waits")
            await pilot.press("down")
            await until(pilot, lambda: re.search(r"rank 1 +step [\d,]+", screen_text(app)))
            job.stop()
            # torchrun ends them by a signal, which an older kernel does not tell once it has waited.
            both = re.compile(r"■ (?:killed by SIGTERM|died).*■ (?:killed by SIGTERM|died)", re.DOTALL)
            await until(pilot, lambda: both.search(text := screen_text(app)) and " ended at " in text)
        session.close()
    assert traces.alive() == []
