"""``overlaptop record``: writes the messages of a job's hubs into a file."""

import argparse
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from overlaptop.commands.arguments import add_flag, add_hosts, add_job, add_value, hosts_of
from overlaptop.commands.following import require_job, until_end
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, print_message, refusing
from overlaptop.findings.watch import FindingsTold, FindingsWatch
from overlaptop.fleet.recorder import Recorder, default_path
from overlaptop.fleet.session import Session
from overlaptop.recording.keep import DEFAULT_KEEP, Keep
from overlaptop.text import reason

DESCRIPTION = """\
Record a running job until it ends or Ctrl-C: all that a dashboard would be sent, the timelines of its ranks
included. `overlaptop replay FILE` shows it again; report and compare read it. A job of 8 ranks takes 20 to
70 MB an hour. The job does no more for it than for a dashboard.
"""
EPILOG = """\
The file is an MCAP file (mcap.dev). One that a killed recorder leaves can be read up to the last few
seconds. It holds the script's path, lines of its stack and the hosts' names.
exit status: 0; 1 where there is no job, the connection broke, or the file could not be written (a full
disk); 2 for a usage error. Ctrl-C ends a recording with 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "overlaptop record [HOST ...] [options]"
    add_job(parser, "the job to record, as --list names it")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: JOB-DATE-TIME.mcap")
    keep = (
        "at least the last 2h (s, m, h), or at most 1GB (MB, GB; default 2GB). The part before is in "
        "FILE with .1 before its suffix; older parts are deleted"
    )
    add_value(parser, "--keep", "AMOUNT", keep, default=DEFAULT_KEEP)
    add_flag(parser, "--wait", "wait for a job where there is none")
    add_hosts(parser, as_words=True)


def run(options: argparse.Namespace) -> int:
    with refusing(ValueError, where="--"):
        keep = Keep.parse(options.keep)
    hosts, recorder = hosts_of(options), Recorder()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with join(options.job, hosts, wait=options.wait, tap=recorder) as session:
        session.tick()
        return record(session, recorder, options.output or default_path(session.job_key), keep)


def record(session: Session, recorder: Recorder, path: Path, keep: Keep) -> int:
    """Record a session, whose tap is `recorder`, until its job ends, SIGINT or SIGTERM. Returns the exit
    status.

    Raises CommandError if the file cannot be written, or the connection is lost.
    """
    watch, told = FindingsWatch(), FindingsTold(session.send)
    with refusing(OSError, where=f"{path}: ", status=1):
        path.parent.mkdir(parents=True, exist_ok=True)
        recorder.begin(path, keep)
    print_message(f"recording to {path}; Ctrl-C ends it")
    began_s = time.monotonic()
    ended_by: list[int] = []
    # An exception could strike in the middle of a write.
    before = {
        number: signal.signal(number, lambda number, _frame: ended_by.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        for snapshot in until_end(session):
            recorder.write(snapshot)
            session.watch(snapshot.compared)
            if look := watch.look(snapshot):
                told.tell(look)
            if ended_by:
                break
            require_job(snapshot, began_s)
        recorder.end()
    except OSError as fault:
        raise CommandError(f"the recording ended: {path}: {reason(fault)}") from fault
    finally:
        with suppress(OSError):
            recorder.end()
        for number, handler in before.items():
            signal.signal(number, handler)
        print_message(recorder.summary)
    return 128 + signal.SIGTERM if signal.SIGTERM in ended_by else 0
