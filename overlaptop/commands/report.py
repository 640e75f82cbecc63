"""``overlaptop report``: how a job went, from the job itself, black boxes, recordings or traces."""

import argparse
import re
from contextlib import closing, suppress
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import msgspec

from overlaptop.commands.analyze import open_traces, session_of
from overlaptop.commands.arguments import add_ascii, add_flag, add_value
from overlaptop.commands.following import settle_waits
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, print_data, print_page, refusing
from overlaptop.commands.replay import is_recording, moment_ns, opened
from overlaptop.fleet.replay_session import ReplaySession
from overlaptop.jobs import last_end
from overlaptop.jobs.record import list_jobs
from overlaptop.recording import black_boxes
from overlaptop.records import RunRecord
from overlaptop.runs.run_log import RunLog
from overlaptop.runs.samples import Samples
from overlaptop.runs.words import describe
from overlaptop.wire.protocol import JOB_KEY

DESCRIPTION = """\
Say how a job went: its steps, overlap and exposed communication, what bounded it, late ranks with their
causes, findings, hangs, changes and what the agent cost. Without a name: the newest job here, running or,
where none runs, ended.
"""
EPILOG = """\
SOURCE is a job's key, a recording, FILE@10:05-10:10 for a part of one, a report that --json printed, or
torch.profiler traces. Each hub leaves a recording of its job's last minutes (a black box), if mcap and
zstandard are installed where the job runs (pip install 'overlaptop[record]'); those of 20 jobs are kept.
exit status: 0; 1 where there is no such job; 2 for a usage error and for a file that cannot be read.
"""
_EVERY_NS = 400_000_000  # Recorded time between two Snapshots: timelines are kept until they are compared
_ARRIVAL_NS = 2_000_000_000
"""Maximum time from a step's end to its arrival. A recording that was begun late has earlier steps, too: of
these, the hub kept only the lengths."""
_MOST_REPORT_BYTES = 16 << 20
_SAME = {
    "late_ranks": attrgetter("rank"),
    "findings": attrgetter("rule", "ranks"),
    "troubles": attrgetter("kind", "ranks"),
}
"""The fields by which two entries of a report are the same."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_value(parser, "source", "SOURCE", "a job's key, or a file", nargs="?")
    add_flag(parser, "--json", "print a record")
    add_ascii(parser)


def run(options: argparse.Namespace) -> int:
    found = report_of(options.source)
    if options.json:
        print_data(found)
    else:
        print_page(describe(found), ascii_only=options.ascii)
    return 0


def report_of(source: str | None) -> RunRecord:
    """Return the report of a job, a recording or a part of one, a saved report or traces. None: the newest
    job. Raises CommandError, with status 2 if a file cannot be read, and JobFolderError.
    """
    if source is not None and (not re.match(JOB_KEY, source) or Path(source).exists()):
        return _of_file(source)
    running = [job for job in list_jobs() if not job.ended and source in (None, job.job)]
    boxes = black_boxes.found(source)
    if running:
        job = running[0]
        run = _of_running(job.job)
        for box in black_boxes.found(job.job):
            if box.started_ns == job.started_ns:
                with suppress(CommandError):  # the job itself was read
                    run = _with_earlier(run, _of_recording(box.path))
        return run
    if not boxes:
        if source is not None:
            raise CommandError(f"there is no job or file {source}")
        needs = "" if find_spec("mcap") else " (that needs pip install 'overlaptop[record]')"
        raise CommandError(f"no job runs here, and none has left its last minutes{needs}")
    of_job = [box.path for box in boxes if box[:2] == boxes[0][:2]]
    run = _of_recording(of_job[0])
    for path in of_job[1:]:
        run = _with_earlier(run, _of_recording(path))
    last = last_end.read()
    if last is not None and last.job == run.job and last.stopped_ns >= run.started_ns:
        # The ranks' ends by SIGTERM are then no trouble.
        run.troubles = [each for each in run.troubles if each.since_ns < last.stopped_ns]
    return run


def _with_earlier(run: RunRecord, earlier: RunRecord) -> RunRecord:
    """Add late ranks, findings and troubles that only this black box of the same job shows."""
    added: dict[str, list[object]] = {}
    for name, key in _SAME.items():
        known = list(map(key, getattr(run, name)))
        more = [each for each in getattr(earlier, name) if key(each) not in known]
        for each in more:
            if name != "troubles" and each.until_step is None:
                each.until_step = earlier.steps - 1
        added[name] = [*getattr(run, name), *more]
    return msgspec.structs.replace(run, **added)


def _of_running(key: str) -> RunRecord:
    """Report the job so far: the minutes that its hub keeps."""
    log = RunLog()
    with join(key) as session:
        log.take(settle_waits(session))
    return _of_log(log, "the job")


def _of_file(source: str) -> RunRecord:
    """Report ``FILE`` or ``FILE@10:05-10:10``."""
    path, window = Path(source), ""
    if not path.exists() and "@" in source:
        name, _, window = source.rpartition("@")
        path = Path(name)
    if window or is_recording(path):
        return _of_recording(path, window)
    return _of_report(path) or _of_traces(path)


def _of_log(log: RunLog, what: str) -> RunRecord:
    found = log.report()
    if found is None:
        raise CommandError(f"{what}: nothing is known of a job", 2)
    return found


def _of_recording(path: Path, window: str = "") -> RunRecord:
    recording = opened(path)
    from_words, dash, to_words = window.partition("-")
    if bool(window) != bool(dash and from_words and to_words):
        raise CommandError(f"{window!r} is no window: 10:05-10:10, or +60s-+120s", 2)
    to_ns = recording.last_ns
    log = RunLog(Samples(begun_ns=recording.first_ns - _ARRIVAL_NS))
    with closing(ReplaySession(recording)) as session:
        if window:
            from_ns, to_ns = moment_ns(from_words, recording), moment_ns(to_words, recording)
            if from_ns >= to_ns:
                raise CommandError(f"{window} is an empty window", 2)
            session.seek(from_ns)
            log = RunLog(Samples(from_ns, to_ns))
        for snapshot in session.play(to_ns, _EVERY_NS):
            log.take(snapshot)
    return _of_log(log, str(path))


def _of_report(path: Path) -> RunRecord | None:
    """Return the saved report. None if the file is none."""
    data = b""
    if path.is_file():  # opening a FIFO would wait for its other end
        with suppress(OSError), path.open("rb") as file:
            data = file.read(_MOST_REPORT_BYTES)
    if not data.lstrip().startswith(b'{"type": "report"'):
        return None
    where = f"{path}: a report that cannot be read: "
    with refusing(msgspec.MsgspecError, ValueError, RecursionError, where=where):
        return msgspec.json.decode(data, type=RunRecord)


def _of_traces(path: Path) -> RunRecord:
    job = open_traces([path])
    log = RunLog(Samples(first_step=0))
    for summary in job.ranks:
        log.samples.add_steps(summary.steps)
    for number, waits in job.waits.items():
        if number >= 0:
            log.samples.add_waits(waits)
    log.take(session_of(job).tick())
    return _of_log(log, str(path))
