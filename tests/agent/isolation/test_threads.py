"""The agent's threads are none of the job's."""

from __future__ import annotations

import sys

from overlaptop.agent.isolation.threads import Thread


def test_no_function_that_traces_or_profiles_is_called_there():
    """`threading.settrace_all_threads` sets them as the thread itself does here."""
    called = []

    def run():
        sys.settrace(lambda *_: called.append("trace"))
        sys.setprofile(lambda *_: called.append("profile"))
        for each in ([],):
            list(map(len, each))
        (lambda: None)()

    Thread(run).join(60)
    assert called == []
