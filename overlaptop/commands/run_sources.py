"""What runs can be read from: a running job, recordings, traces, reports."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from overlaptop.commands.output import CommandError
from overlaptop.commands.recorded import is_recording, moment_ns, opened
from overlaptop.records import RunRecord
from overlaptop.runs.run_log import RunLog
from overlaptop.runs.samples import Samples

if TYPE_CHECKING:
    from overlaptop.recording.black_boxes import BlackBox

_EVERY_NS = 400_000_000
"""Recording time that is read at once: a rank's timelines are kept until they are compared."""
_MOST_REPORT_BYTES = 16 << 20


def of_running(key: str) -> RunRecord:
    """The report of the job so far: of the minutes that its hub keeps."""
    from overlaptop.commands.following import settle_waits
    from overlaptop.commands.jobs import join

    log = RunLog()
    with closing(join(key)) as session:
        log.take(settle_waits(session))
    return _of_log(log, "the job")


def of_black_box(box: BlackBox) -> RunRecord:
    """The report of a job that ended, hung or failed."""
    return _of_recording(box.path, "")


def of_file(source: str) -> RunRecord:
    """The report of a file: ``FILE`` or ``FILE@10:05-10:10``."""
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


def _of_recording(path: Path, window: str) -> RunRecord:
    from overlaptop.fleet.replay_session import ReplaySession

    recording = opened(path)
    from_words, dash, to_words = window.partition("-")
    if bool(window) != bool(dash and from_words and to_words):
        raise CommandError(f"{window!r} is no window: 10:05-10:10, or +60s-+120s", 2)
    log = RunLog()
    with closing(ReplaySession(recording)) as session:
        if not window:
            for snapshot in session.play(every_ns=_EVERY_NS):
                log.take(snapshot)
            return _of_log(log, str(path))
        from_ns, to_ns = moment_ns(from_words, recording), moment_ns(to_words, recording)
        if from_ns >= to_ns:
            raise CommandError(f"{window} is an empty window", 2)
        session.seek(from_ns)
        log = RunLog(Samples(from_ns, to_ns))
        for snapshot in session.play(to_ns, _EVERY_NS):
            log.take(snapshot)
    return _of_log(log, str(path))


def _of_report(path: Path) -> RunRecord | None:
    """None: it is no report."""
    if not path.is_file():  # opening a FIFO would wait for its other end
        return None
    try:
        with path.open("rb") as file:
            if not file.read(64).lstrip().startswith(b'{"type": "report"'):
                return None
            file.seek(0)
            data = file.read(_MOST_REPORT_BYTES + 1)
    except OSError:
        return None
    try:
        if len(data) > _MOST_REPORT_BYTES:
            raise ValueError("it is too long")
        return msgspec.json.decode(data, type=RunRecord)
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise CommandError(f"{path}: a report that cannot be read: {fault}", 2) from fault


def _of_traces(path: Path) -> RunRecord:
    from overlaptop.commands.analyze import open_traces, session_of

    job = open_traces([path])
    log = RunLog(Samples(first_step=0))
    for summary in job.ranks:
        log.samples.add_steps(summary.steps)
    for number, waits in job.waits.items():
        if number >= 0:
            log.samples.add_waits(waits)
    log.take(session_of(job).tick())
    return _of_log(log, str(path))
