"""A rank's last word says what ended its script."""

import pytest

from overlaptop.agent.script.failure import failure_of
from overlaptop.wire.messages import RankEnd


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (SystemExit(0), ""), (SystemExit(3), "exit status 3"),
        (SystemExit("no data"), "exit status 1: no data"), (ValueError("boom\nmore"), "ValueError: boom"),
        (KeyboardInterrupt(), "KeyboardInterrupt"), (Mute(), "Mute"), (ValueError("x" * 9000), None),
    ],
)  # fmt: skip
def test_an_end_is_told_in_one_line(end, words):
    told = failure_of(end)
    assert len(told) < 300
    assert words is None or told == words


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("cannot log in at https://me:SECRET@host/", "cannot log in at https://me:***@host/"),
        ("postgresql+psycopg://me:SE@CRET@host:5432/x?y=1", "postgresql+psycopg://me:***@host:5432/x?y=1"),
        ("'redis://:SE/CRET@host', 's3://me:SECRET@bucket'", "'redis://:***@host', 's3://me:***@bucket'"),
        ("clone https://SECRET@host/repository.git", "clone https://***@host/repository.git"),
        ("x" * 180 + " https://me:SECRET" + "SECRET" * 99 + "@host/", "x" * 180 + " https://me:"),
        ("no route to tcp://10.0.0.1:29500/a@b", "no route to tcp://10.0.0.1:29500/a@b"),
    ],
    ids=["password", "with an @", "with a slash", "token", "cut off", "none"],
)
def test_secrets_in_urls_are_masked(words, kept):
    told = failure_of(ValueError(words))
    assert told.startswith(f"ValueError: {kept}")
    assert "SECRET" not in told


STEPS = "import torch, overlaptop.agent\nfor _ in range(3): overlaptop.agent.step()\n"


def test_the_goodbye_says_how_the_script_ended(run_ranks):
    job = run_ranks(f"{STEPS}raise ValueError('boom')", nproc=1, forked=True)
    assert job.codes == [1], job.errs
    last = job.messages[-1]
    assert isinstance(last, RankEnd)
    assert (last.clean, last.failure) == (True, "ValueError: boom")


IN_A_CHILD = """
    import torch.multiprocessing
    import overlaptop.agent

    def train(rank):
        overlaptop.agent.attach()
        for _ in range(3):
            overlaptop.agent.step()
        raise ValueError("boom")

    if __name__ == "__main__":
        try:
            torch.multiprocessing.start_processes(train, nprocs=1, start_method="fork")
        except torch.multiprocessing.ProcessException:
            pass
"""


def test_rank_that_multiprocessing_forked_reports_its_own_end(run_ranks):
    job = run_ranks(IN_A_CHILD, nproc=1, agent=False, forked=True)
    (end,) = job.of(RankEnd)
    assert (end.clean, end.failure) == (True, "ValueError: boom")
