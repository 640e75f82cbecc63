"""Draws the pictures of other hosts: the real dashboard, a job on two hosts, and one of them out of reach.

PYTHONPATH=. python screenshots/hosts.py [--to DIR]

The hosts are those of the tests (tests/remote/hosts.py): namespaces of this machine, each with a real sshd.
That needs root, openssh-server and iproute2.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from make import HERE, Scene, png_writer, say, shoot

from overlaptop.commands.hosts import Hosts, connect
from overlaptop.fleet.snapshot import HubState
from overlaptop.remote.targets import Target
from overlaptop.tui.app import OverlaptopApp
from overlaptop.tui.options import TuiOptions
from tests.remote.hosts import DDP, NODES, SMALL, Lab, RemoteJob, why_not


def lost(app: OverlaptopApp) -> bool:
    """Whether the connection to a host is lost: until then only its hub is said to be silent."""
    return any(node.hub_state is HubState.LOST for node in app.dashboard.latest.nodes)


SCENES = (
    Scene("hosts", 120, 32),
    Scene("hosts-lost", 120, 32, until=lost),
    Scene("hosts-narrow", 60, 20, until=lost),
)


def main() -> None:
    """Start the hosts and the job, take each picture, end all."""
    parser = argparse.ArgumentParser(description="Draw the pictures of a job on two hosts.")
    parser.add_argument("--to", type=Path, default=HERE, metavar="DIR", help="folder of the pictures")
    options = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    write_png = png_writer()
    if write_png is None:
        raise SystemExit(1)
    with Lab() as lab:
        os.environ["OVERLAPTOP_SSH"] = str(lab.ssh)
        servers = [lab.servers[name] for name in NODES]
        folder = lab.folder / "job"
        folder.mkdir()
        script = Path(DDP.name)
        (folder / script).symlink_to(DDP)  # so that the picture names no folder of this machine
        with RemoteJob(servers, folder, *SMALL, script=script) as job:
            for scene in SCENES:
                path = options.to / f"{scene.name}.svg"
                path.write_text(picture(scene, lab, job), encoding="utf-8")
                write_png(path)
                say(path.name)


def picture(scene: Scene, lab: Lab, job: RemoteJob) -> str:
    """One scene, with a cable that is cut where the scene waits for that."""
    cable = lab.cables[NODES[-1]]
    session = connect(Hosts(tuple(Target.parse(name) for name in NODES)))
    try:
        return asyncio.run(
            shoot(
                scene,
                session,
                TuiOptions(connections=session),
                lambda: "" if job.runs else job.log.read_text(),
                cable.cut if scene.until is not None else lambda: None,
            )
        )
    finally:
        session.close()
        cable.mend()


if __name__ == "__main__":
    main()
