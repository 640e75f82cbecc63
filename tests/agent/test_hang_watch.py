"""What a hanging rank tells of itself fits into a message."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch.distributed as dist

from overlaptop.agent import hang_watch
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.messages import MAX_LAST_GROUPS, IssuedCall, RankStalled
from tests.agent.test_stacks import CALLS, HERE, STAYS, of_file, thread_in


def test_process_that_was_stopped_is_not_hung():
    watch = hang_watch.HangWatch(HERE, lambda *_: None)

    def hangs(seen, now_s):
        said = watch.between_steps(0, 0, seen, [1], dict, now_s)
        return said is not None and said.hung

    assert not any(hangs(1, tenth / 10) for tenth in range(90))
    assert not any(hangs(1, 60.0 + second) for second in range(11))  # nobody looked for 51 s
    assert hangs(1, 70.5)
    assert not hangs(2, 70.6)


def test_line_waiting_in_torch_distributed_names_the_call():
    folder = Path(dist.__file__).parent
    inner = of_file(f"{folder}/rendezvous.py", "_meet", STAYS)
    join = of_file(f"{folder}/distributed_c10d.py", "init_process_group", CALLS)
    logged = of_file(f"{folder}/c10d_logger.py", "wrapper", CALLS)
    script = of_file(f"{HERE}/train.py", "main", CALLS)
    with thread_in(script, logged, join, inner) as thread:
        assert hang_watch.stack_of(thread, HERE)[0] == "train.py:2 init_process_group"


def test_thread_stands_before_its_first_step_where_it_stays():
    began_s = time.monotonic()

    def looks(seen):
        watch = hang_watch.HangWatch(Path(), lambda *_: None)
        said = [watch.before_first_step(0, thread, seen(at), began_s + at) for at in range(1, 30)]
        return [each.hung for each in said if each]

    with thread_in(of_file("train.py", "prepare", STAYS)) as thread:
        assert looks(lambda second: None)[-1]
        went_on = looks(lambda second: second // 5)
    assert set(went_on) == {False}, "its collectives go on"


class Group(NamedTuple):
    group_name: str
    group_desc: str = ""


def test_groups_used_last_are_reported(monkeypatch):
    ranks = {Group(str(number)): dict.fromkeys(range(2)) for number in range(40)}
    ranks[Group("large")] = dict.fromkeys(range(5000))
    ranks[dist.GroupMember.NON_GROUP_MEMBER] = {2: 0, 3: 1}  # as torch has a group of other ranks
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_group_ranks=ranks))
    calls = {str(number): (IssuedCall("allreduce_", 4, 1, number),) for number in range(40)}
    groups = hang_watch.groups_of({"large": (IssuedCall("allreduce_", 4, 1, 99),), **calls})
    assert [each.group for each in groups] == [str(39 - back) for back in range(MAX_LAST_GROUPS)]
    said = RankStalled(0, True, groups)
    assert decode(encode(said)) == said
