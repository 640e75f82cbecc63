"""A rank that is stopped or killed is told from those that wait for it, in a running job."""

import os
import signal

from overlaptop.agent.control import capture
from overlaptop.fleet.trouble import Kind, trouble_of


def test_stopped_and_killed_ranks_are_named(start, watch):
    job, watching = start(), watch()
    pid = watching.until_it_trains().ranks[1].info.pid

    def told(snapshot):
        found = trouble_of(snapshot)
        return None if found is None else (found.kind, found.ranks)

    os.kill(pid, signal.SIGSTOP)
    try:
        found = watching.until(lambda snapshot: told(snapshot) == (Kind.SILENT, (1,)) and snapshot)
        assert [view.silent for view in found.ranks] == [False, True]
    finally:
        os.kill(pid, signal.SIGCONT)
    watching.until(lambda snapshot: told(snapshot) is None)
    watching.goes_on()
    key = watching.ask()
    os.kill(pid, signal.SIGKILL)
    assert watching.until_it_has_ended(job) != 0

    def names_it(snapshot):
        if not all(view.end for view in snapshot.ranks):
            return False
        # Before Linux 6.15 nobody can tell how a rank ended that its launcher has waited for.
        is_known = snapshot.ranks[1].end.exit_code is not None
        kinds = {Kind.DIED} if is_known else {Kind.DIED, Kind.ALL_DIED}
        return told(snapshot) in {(kind, (1,)) for kind in kinds}

    watching.until(names_it)
    assert watching.outcome(key).state == "failed"
    assert not list(job.folder.glob(f"{capture.FOLDER}/{key}/*"))
