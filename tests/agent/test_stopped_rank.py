"""A rank that is stopped or killed is told from those that wait for it, in a running job."""

from __future__ import annotations

import os
import signal

from overlaptop.fleet.trouble import Kind, trouble_of


def test_a_stopped_rank_is_named_until_it_goes_on_and_a_killed_one_as_the_first_to_die(start, watch):
    start()
    watching = watch()
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
    os.kill(pid, signal.SIGKILL)
    watching.until(
        lambda snapshot: all(view.ended for view in snapshot.ranks) and told(snapshot) == (Kind.DIED, (1,))
    )
