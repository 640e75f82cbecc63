"""Which line of the script the training thread is at: file, line and function, and nothing else."""

import textwrap
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from overlaptop.agent import stacks
from overlaptop.agent.stacks import StackSampler
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.messages import MAX_STACK_LINES, StackLine, StackSamples
from tests.agent.conftest import COUNTS_MESSAGES

HERE = Path(__file__).parent
S = 1_000_000_000
STAYS, CALLS = "rest[0].set(); rest[1].wait()", "rest[0](*rest[1:])"


def of_file(path, name, body):
    """A function as one of that file's, on its second line."""
    made = {}
    exec(compile(f"def {name}(*rest):\n    {body}", path, "exec"), made)
    return made[name]


@contextmanager
def thread_in(first, *others):
    """A thread that stands in the last of these, each of which is called by the one before."""
    there, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=first, args=(*others, there, leave))
    thread.start()
    assert there.wait(60)
    try:
        yield thread.ident
    finally:
        leave.set()
        thread.join()


HIDDEN = {
    "torch": f"{Path(torch.__file__).parent}/nn/modules/module.py",
    "library": threading.__file__,
    "agent": f"{Path(stacks.__file__).parent}/hooks/steps.py",
    "frozen": "<frozen runpy>",
    "fx": "<eval_with_key>.7",
    "exec": "<string>",
    "inductor": "/tmp/torchinductor_me/ab/cabc.py",
}
NAMED = {
    f"{HERE}/data/sets.py": "data/sets.py:2 in load",
    "/lib/python3.11/site-packages/transformers/trainer.py": "transformers/trainer.py:2 in load",
    "<stdin>": "<stdin>:2 in load",
}


CASES = [(f"{HERE}/data/sets.py", inner) for inner in HIDDEN] + [(file, "torch") for file in NAMED]


@pytest.mark.parametrize(("file", "inner"), CASES)
def test_innermost_frame_outside_torch_and_the_library_is_named(file, inner):
    sampler = StackSampler(HERE)
    with thread_in(of_file(file, "load", CALLS), of_file(HIDDEN[inner], "inner", STAYS)) as thread:
        sampler.sample(thread, 0)
    assert sampler.take(0, S).lines == (StackLine(NAMED[file], 1, 0),)


def test_thread_stands_where_it_sleeps_but_not_in_torch():
    collate = of_file(f"{HERE}/train.py", "collate", CALLS)
    for inner, asleep in (("library", 1), ("torch", 0)):
        sampler = StackSampler(HERE)
        with thread_in(collate, of_file(HIDDEN[inner], "inner", STAYS)) as thread:
            sampler.sample(thread, 0, asleep=True)
            sampler.sample(thread, 0)
        assert sampler.take(0, S).lines == (StackLine("train.py:2 in collate", 2, asleep),)


def test_message_has_the_most_frequent_lines_of_each_second():
    sampler = StackSampler(HERE)
    for number in range(MAX_STACK_LINES + 2):
        with thread_in(of_file("a/train.py", f"f{number}", STAYS)) as thread:
            for _ in range(number + 1):
                sampler.sample(thread, 5)
    assert sampler.take(0, 5 + S - 1) is None
    taken = sampler.take(0, 5 + S)
    assert decode(encode(taken)) == taken
    counts = [each.samples for each in taken.lines]
    assert (taken.from_ns, taken.to_ns, taken.samples) == (5, 5 + S, 55)
    assert counts == [10, 9, 8, 7, 6, 5, 4, 3]
    assert sampler.take(0, 5 + 2 * S) == StackSamples(0, 5 + S, 5 + 2 * S, 0, ())


class Tensor:
    """The job's."""


def test_variables_of_a_sampled_function_are_released_at_its_end():
    sampler, tensor = StackSampler(HERE), Tensor()
    alive = weakref.ref(tensor)
    collate = of_file("a/train.py", "collate", "rest[0](*rest[2:])")
    with thread_in(collate, of_file(HIDDEN["torch"], "inner", STAYS), tensor) as thread:
        sampler.sample(thread, 0)
        del tensor
        assert alive() is not None
    assert alive() is None
    assert sampler.take(0, S).lines


JOB = f"""
    import sys, time
    {COUNTS_MESSAGES}
    import torch, overlaptop.agent

    def collate():
        time.sleep(0.02)

    made = 0
    while (sent["StackSamples"] < 2 if sys.argv[1] == "seen" else made < 30):
        collate()
        overlaptop.agent.step()
        made += 1
"""


def test_job_says_at_which_line_it_is_unless_told_not_to(run_ranks):
    script = textwrap.dedent(JOB)
    at = 1 + script.splitlines().index("    time.sleep(0.02)")
    job = run_ranks(script, nproc=1, arguments=("seen",), forked=True)
    without = run_ranks(script, nproc=1, arguments=("",), options=("--no-stacks",), forked=True)
    assert job.codes == without.codes == [0], (job.errs, without.errs)
    said = job.of(StackSamples)
    assert len(said) >= 2
    assert all(each.lines[0].line.endswith(f".py:{at} in collate") for each in said)
    assert without.of(StackSamples) == []
