"""Draws the pictures of this folder: the real dashboard, without a terminal, beside a real job.

python screenshots/make.py [--nproc N] [--only NAME ...]

Each scene is the app at a fixed size, shown once its figures are there and steady, as SVG and as PNG.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import cairosvg

from overlaptop.fleet.session import JobSelector, JobSession
from overlaptop.launcher import Launcher, bundled, place
from overlaptop.tui.app import OverlaptopApp
from overlaptop.tui.options import TuiOptions

HERE = Path(__file__).resolve().parent
STEADY_STEPS = 40
"""Steps of each rank before the first picture: the history columns are then filled."""
START_LIMIT_S = 180.0
SETTLE_S = 1.0
"""From a key to a picture: a redraw comes every quarter of a second."""
WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture."""

    name: str
    columns: int
    rows: int
    keys: tuple[str, ...] = ()
    """Pressed before the picture is taken."""
    theme: str | None = None


SCENES = (
    Scene("overview", 120, 32),
    Scene("overview-wide", 160, 45),
    Scene("overview-narrow", 60, 20),
    Scene("overview-light", 120, 32, theme="overlaptop-light"),
    Scene("rank", 120, 32, keys=("2",)),
    Scene("help", 120, 46, keys=("question_mark",)),
)


async def take(scene: Scene, launcher: Launcher) -> None:
    """Write one scene's files."""
    session = JobSession(JobSelector(matches=launcher.owns))
    app = OverlaptopApp(session, TuiOptions(theme=scene.theme))
    try:
        async with app.run_test(size=(scene.columns, scene.rows)) as pilot:
            deadline_s = time.monotonic() + START_LIMIT_S
            while app.is_running and not steady(app):
                if launcher.poll() is not None:
                    raise SystemExit("\n".join(["the job ended:", *launcher.complaint()]))
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"{scene.name}: no steady figures in {START_LIMIT_S:.0f} s")
                await pilot.pause(0.1)
            if scene.keys:
                await pilot.press(*scene.keys)
            await pilot.pause(SETTLE_S)
            # Without its link to a font on the web the file is complete in itself.
            svg = WEB_FONT.sub("", app.export_screenshot(title="overlaptop"))
    finally:
        session.close()
    svg = svg.replace("Fira Code", "DejaVu Sans Mono")
    path = HERE / f"{scene.name}.svg"
    path.write_text(svg, encoding="utf-8")
    cairosvg.svg2png(bytestring=svg.encode(), write_to=str(path.with_suffix(".png")), scale=1.5)
    print(path.name, file=sys.stderr)


def steady(app: OverlaptopApp) -> bool:
    """Whether each rank has a history and the chosen one a timeline."""
    ranks = app.latest.ranks
    if not ranks or any(len(view.history) < STEADY_STEPS for view in ranks):
        return False
    return any(view.detail is not None for view in ranks)


def main() -> None:
    """Start the job, take each picture, end the job."""
    parser = argparse.ArgumentParser(description="Draw the screenshots from a real job.")
    parser.add_argument("--nproc", type=int, help="processes (default: as overlaptop demo)")
    parser.add_argument("--workload", default="ddp", help="bundled workload (default: ddp)")
    parser.add_argument("--only", nargs="+", choices=[scene.name for scene in SCENES], metavar="NAME")
    options = parser.parse_args()
    with bundled(options.workload, placement=place(options.nproc)) as launcher:
        launcher.start()
        for scene in SCENES:
            if options.only is None or scene.name in options.only:
                asyncio.run(take(scene, launcher))


if __name__ == "__main__":
    main()
