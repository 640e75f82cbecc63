"""Draws the pictures of this folder: the real dashboard, without a terminal, beside a real job.

    python screenshots/make.py [--nproc N] [--only NAME ...]

Each scene is the app at a fixed size, drawn as SVG once its figures are known and steady.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from overlaptop.fleet.job_session import JobSelector, JobSession
from overlaptop.fleet.snapshot import RankView
from overlaptop.launch.launcher import Launcher, of_workload, place
from overlaptop.report.who_is_late import Kind
from overlaptop.tui.app import OverlaptopApp
from overlaptop.tui.model.options import TuiOptions
from overlaptop.workloads import catalog
from overlaptop.workloads.catalog import Workload

HERE = Path(__file__).resolve().parent
TUTORIAL = HERE.parent / "docs" / "tutorial.md"
STEADY_STEPS = 40  # Steps of each rank before the first picture: the history columns are then filled
START_LIMIT_S = 180.0
CHANGE_LIMIT_S = 600.0  # For steps after a change
SETTLE_S = 1.0  # From a key to a picture: a redraw comes every quarter of a second
LINKS_S = 25.0  # Seconds of history before the links' rates are drawn
RICH_FONT, FONT = "font-size: 20px", "font-size: 20.264px"
"""Rich's, and the one at which DejaVu Sans Mono fills a cell exactly: lines and boxes then join."""
WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture."""

    name: str
    columns: int
    rows: int
    keys: tuple[str, ...] = ()  # Pressed before the picture is taken
    theme: str | None = None
    links_s: float = 0.0  # Seconds of the GPUs' links that must be known first
    until: Callable[[OverlaptopApp], bool] | None = None  # After the keys; None: at once
    job: tuple[str, ...] = ("ddp",)
    """The workload and its options, or of the tutorial's script what to replace in it."""


def compared(app: OverlaptopApp) -> bool:
    """Whether a change has been made, and enough steps came after it."""
    found = app.dashboard.state.compared
    steps = min(each.steps_done for each in (found.before, found.after)) if found is not None else 0
    return found is not None and found.of_change and steps >= STEADY_STEPS


def explained(app: OverlaptopApp) -> bool:
    """Whether it is known which rank is late, why, and what it costs."""
    return any(finding.why_late and finding.gain_ns for finding in app.dashboard.state.findings or ())


def answered(app: OverlaptopApp) -> bool:
    """Whether the first line says more than that it measures."""
    line = app.dashboard.state.first_line
    return line is not None and line.kind is not Kind.MEASURING


LATE = ("faults", "--late-rank", "1", "--by", "sleep", "--share", "0.4")
SLOW, FIXED = ("tutorial", "", ""), ("tutorial", "batch_size=16", "batch_size=16, num_workers=8")
SCENES = (
    Scene("overview", 120, 32, until=answered),
    Scene("overview-wide", 160, 45, until=answered),
    Scene("overview-narrow", 60, 20, until=answered),
    Scene("overview-light", 120, 32, theme="overlaptop-light", until=answered),
    Scene("rank", 120, 32, keys=("2",)),
    Scene("help", 120, 46, keys=("question_mark",)),
    # Last: the history that they need gathers at the hub while the others are taken.
    Scene("machine", 160, 45, keys=("m",), links_s=LINKS_S),
    Scene("machine-narrow", 60, 20, keys=("m",), links_s=LINKS_S),
    # These change the job.
    Scene("change", 120, 38, keys=("right_square_bracket", "right_square_bracket"), until=compared),
    Scene("tune", 120, 32, keys=("u",)),
    Scene("late-rank", 120, 32, until=explained, job=LATE),
    Scene("findings", 120, 16, keys=("f",), until=explained, job=LATE),
    Scene("collectives", 120, 20, keys=("C",), until=explained, job=LATE),
    Scene("timelines", 120, 26, keys=("T", *["full_stop"] * 5), until=explained, job=LATE),
    Scene("tutorial-overview", 110, 14, until=explained, job=SLOW),
    Scene("tutorial-timelines", 110, 18, keys=("T",), until=explained, job=SLOW),
    Scene("tutorial-rank", 110, 26, keys=("down", "2"), until=explained, job=SLOW),
    Scene("tutorial-findings", 110, 16, keys=("f",), until=explained, job=SLOW),
    Scene("tutorial-help", 110, 26, keys=("question_mark",), job=SLOW),
    Scene("tutorial-fixed", 110, 14, until=answered, job=FIXED),
)


async def take(scene: Scene, launcher: Launcher) -> str:
    """Return one scene of the launched job as SVG."""
    with closing(JobSession(JobSelector(matches=launcher.owns))) as session:
        app = OverlaptopApp(session, TuiOptions(theme=scene.theme))
        async with app.run_test(size=(scene.columns, scene.rows)) as pilot:

            async def wait(until: Callable[[], bool], limit_s: float) -> None:
                deadline_s = time.monotonic() + limit_s
                while not until():
                    if time.monotonic() > deadline_s:
                        raise SystemExit(f"{scene.name}: not there after {limit_s:.0f} s")
                    if launcher.poll() is not None:
                        raise SystemExit("\n".join(["the job ended:", *launcher.complaint()]))
                    await pilot.pause(0.1)

            await wait(lambda: steady(app.dashboard.latest.ranks, scene.links_s), START_LIMIT_S)
            await pilot.press(*scene.keys)
            await pilot.pause(SETTLE_S)
            await wait(lambda: scene.until is None or scene.until(app), CHANGE_LIMIT_S)
            await pilot.pause(SETTLE_S)
            svg = app.export_screenshot(title="overlaptop")
    # Without its link to a font on the web the file is complete in itself.
    svg = WEB_FONT.sub("", svg)
    return svg.replace("Fira Code", "DejaVu Sans Mono").replace(RICH_FONT, FONT)


def steady(ranks: Sequence[RankView], links_s: float) -> bool:
    """Whether each rank has a history and knows its machine, and the chosen one a timeline; of a GPU also
    whether these seconds of its links' rates are there, and at least one sample.
    """
    if not ranks or any(len(view.history) < STEADY_STEPS or view.machine is None for view in ranks):
        return False
    for view in ranks:
        if view.device is not None and view.device.gpu_uuid:
            samples = view.samples
            if not samples or samples[-1].at_ns - samples[0].at_ns < links_s * 1e9:
                return False
    return any(view.detail is not None for view in ranks)


def launched(job: Sequence[str], nproc: int | None, workloads: Mapping[str, Workload]) -> Launcher:
    """Return the launcher of a scene's job; of the tutorial's, which it writes into the present folder."""
    if job[0] != "tutorial":
        return of_workload(workloads[job[0]], job[1:], nproc)
    _, _, script = TUTORIAL.read_text(encoding="utf-8").partition("```python\n")
    old, new = job[1:]
    Path("train.py").write_text(script.partition("```")[0].replace(old, new), encoding="utf-8")
    return Launcher("train.py", (), place(2, "cpu"), agent_options=("--control",))


def main() -> None:
    """Start each job, take its pictures, and end it."""
    parser = argparse.ArgumentParser(description="Draw the screenshots from real jobs.")
    parser.add_argument("--nproc", type=int, help="processes (default: as overlaptop demo)")
    parser.add_argument("--only", nargs="+", choices=[scene.name for scene in SCENES], metavar="NAME")
    options = parser.parse_args()
    workloads = {each.name: each for each in catalog.WORKLOADS}
    scenes = [scene for scene in SCENES if options.only is None or scene.name in options.only]
    for job, of_job in groupby(scenes, key=lambda scene: scene.job):
        with (
            tempfile.TemporaryDirectory() as folder,
            chdir(folder if job[0] == "tutorial" else "."),
            launched(job, options.nproc, workloads) as launcher,
        ):
            launcher.start()
            for scene in of_job:
                svg = asyncio.run(take(scene, launcher))
                (HERE / f"{scene.name}.svg").write_text(svg, encoding="utf-8")
                print(scene.name, file=sys.stderr)


if __name__ == "__main__":
    main()
