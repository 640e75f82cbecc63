"""``overlaptop export``: a job in files for other tools and for colleagues."""

import argparse
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from overlaptop.commands import once
from overlaptop.commands.analyze import add_traces, open_traces, session_of
from overlaptop.commands.arguments import add_hosts, add_job, add_value, hosts_of
from overlaptop.commands.findings import found_in
from overlaptop.commands.following import settle_waits
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, print_message, refusing
from overlaptop.commands.replay import is_recording, opened
from overlaptop.export import chrome, page
from overlaptop.export.timeline import JobTimeline, from_snapshot, from_traces
from overlaptop.findings.first_line import first_line
from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.report.figures import window_text

DESCRIPTION = """\
Write the steps of torch.profiler traces, of a recording, or of a running job, into files for other tools.
PATH is what `overlaptop analyze` takes, or one recording, whose last minutes are written; without
one, the job that runs here, or there, is asked for some steps.
"""
EPILOG = """\
Of a running job, timelines are of the steps that were measured while somebody watched: eight at least.
--csv has all kept steps.
exit status: 0, or 1 when there is no job, 2 for a usage error and for a file that cannot be read or written
"""
_FORMATS = ("perfetto", "chrome", "html", "csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_path = partial(add_value, parser, type=Path)
    add_path("paths", "PATH", "a trace, or a folder of them", nargs="*")
    add_path("--perfetto", "FILE", "all ranks aligned, for ui.perfetto.dev")
    add_path("--chrome", "DIR", "a trace for each rank, for HolisticTraceAnalysis and chrome://tracing")
    add_path("--html", "FILE", "one page, readable without a network")
    add_path("--csv", "FILE", "a row for each rank and step")
    add_job(parser, "the running job, as --list names it")
    add_traces(parser)
    add_hosts(parser)


def run(options: argparse.Namespace) -> int:
    wanted = {name: path for name in _FORMATS if (path := vars(options)[name]) is not None}
    if not wanted:
        raise CommandError(f"name a file: {', '.join(f'--{name}' for name in _FORMATS)}", 2)
    hosts = hosts_of(options)
    if options.paths and (hosts is not None or options.job is not None):
        raise CommandError("--job and --host name a running job: leave out PATH", 2)
    if "perfetto" in wanted:
        import overlaptop.export.perfetto  # noqa: F401 - before a job is asked: it may not be installed
    if any(map(is_recording, options.paths)):
        if len(options.paths) > 1:
            raise CommandError("name one recording alone", 2)
        timeline, snapshot = _recorded(options.paths[0])
    else:
        timeline, snapshot = _traced(options) if options.paths else _running(options)
    for name, path in wanted.items():
        with refusing(OSError, where=f"--{name} {path}: "):
            _write(name, path, timeline, snapshot)
        print_message(f"{path}: written")
    return 0


def _traced(options: argparse.Namespace) -> tuple[JobTimeline, Callable[[], Snapshot]]:
    job = open_traces(options.paths, options.lane, options.cycle)
    return from_traces(job), lambda: session_of(job).tick()


def _recorded(path: Path) -> tuple[JobTimeline, Callable[[], Snapshot]]:
    recording = opened(path)
    with closing(ReplaySession(recording)) as session:
        snapshot = session.seek(recording.last_ns)
    if snapshot.job is None:
        raise CommandError(f"{path}: nothing is known of a job", 2)
    return from_snapshot(snapshot), lambda: snapshot


def _running(options: argparse.Namespace) -> tuple[JobTimeline, Callable[[], Snapshot]]:
    with join(options.job, hosts_of(options)) as session:
        snapshot = settle_waits(session)
    return from_snapshot(snapshot), lambda: snapshot


def _write(name: str, path: Path, job: JobTimeline, snapshot: Callable[[], Snapshot]) -> None:
    if name == "perfetto":
        from overlaptop.export import perfetto

        with path.open("wb") as packets:
            perfetto.write(job, packets)
    elif name == "chrome":
        chrome.write(job, path)
    elif name == "csv":
        with path.open("w", encoding="utf-8", newline="") as rows:
            job.write_csv(rows)
    else:
        path.write_text(page.render(job, _summary(job, snapshot())), encoding="utf-8")


def _summary(job: JobTimeline, snapshot: Snapshot) -> page.Summary:
    found = found_in(snapshot)
    said = first_line(snapshot, found)
    return page.Summary(
        once.title(snapshot),
        said.words if said is not None else "",
        window_text(snapshot.totals),
        once.figures(snapshot),
        [each.record(job.job) for each in found],
    )
