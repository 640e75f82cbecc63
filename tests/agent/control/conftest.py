"""Ranks that are given commands."""

import pytest

from tests.agent.control.commanded_rank import CommandedRank, Recording


@pytest.fixture
def make_job():
    jobs = []

    def make(*args, **kwargs):
        jobs.append(CommandedRank(*args, **kwargs))
        return jobs[-1]

    yield make
    for job in jobs:
        if isinstance(job.action, Recording):
            job.action.may_finish.set()
        job.executor.close()
