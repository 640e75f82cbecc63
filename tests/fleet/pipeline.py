"""A pipeline's stages, one a rank: what each computes, sends and receives, by its schedule."""

from msgspec.structs import replace

from overlaptop.fleet.job_state import JobState
from overlaptop.wire.messages import CollectiveSpan, StepTotals

from .builders import MS, T0, Clock, feed, info, laid_out, status, welcome

FORWARD_NS, BACKWARD_NS = 4 * MS, 8 * MS
TRANSFER_NS = MS // 10
OPTIMIZER_NS = MS // 2


def gpipe(_stage, _stages, number):
    return [("forward", nth) for nth in range(number)] + [("backward", nth) for nth in range(number)]


def one_forward_one_backward(stage, stages, number):
    ahead = min(stages - 1 - stage, number)
    turns = [("forward", nth) for nth in range(ahead)]
    for nth in range(number - ahead):
        turns += [("forward", ahead + nth), ("backward", nth)]
    return turns + [("backward", nth) for nth in range(number - ahead, number)]


def seen(schedule, stages, micro_batches, *, loading_ns=None, **changes):
    """The Snapshot after the last step; ``loading_ns``: of each stage, by a source that takes loading for
    compute; ``changes`` as `steps_of` takes them.
    """

    def loads(message):
        counts = loading_ns and isinstance(message, StepTotals)
        return replace(message, loading_ns=loading_ns[message.rank]) if counts else message

    fleet, exact = JobState(Clock()), loading_ns is None
    infos = (info(stage, exact=exact) for stage in range(stages))
    snapshot = feed(fleet, welcome(world_size=stages), status(), *infos)
    for messages in steps_of(schedule, stages, micro_batches, **changes):
        snapshot = feed(fleet, *(loads(each) for each in messages))
    return snapshot


def steps_of(
    schedule, stages, micro_batches, *, takes=lambda stage: 1, together=False,
    group=lambda first: "0 pp", steps=12,
):  # fmt: skip
    """The messages of each step. ``takes``: how many times as long as usual a stage computes;
    ``together``: all ranks end a step with the last one; ``group``: that of two neighbours, by the first.
    """
    at_ns = [T0] * stages
    for number in range(steps):
        begun_ns, sent_ns = list(at_ns), {}
        computes, calls = ([[] for _ in range(stages)] for _ in range(2))
        todo = [schedule(stage, stages, micro_batches) for stage in range(stages)]
        while any(todo):
            for stage, turns in enumerate(todo):
                while turns:
                    way, nth = turns[0]
                    source = stage + (-1 if way == "forward" else 1)
                    if 0 <= source < stages:
                        if (way, source, nth) not in sent_ns:
                            break
                        sent, begin = sent_ns[way, source, nth], at_ns[stage]
                        at_ns[stage] = max(begin, sent) + TRANSFER_NS
                        own = group(min(stage, source))
                        calls[source].append((sent, sent + TRANSFER_NS, "send", own, stage, None))
                        calls[stage].append((begin, at_ns[stage], "recv_", own, None, source))
                    begin = at_ns[stage]
                    length_ns = FORWARD_NS if way == "forward" else BACKWARD_NS
                    at_ns[stage] += round(length_ns * takes(stage))
                    computes[stage].append((begin, at_ns[stage]))
                    sent_ns[way, stage, nth] = at_ns[stage]
                    turns.pop(0)
        ends_ns = [(max(at_ns) if together else own) + OPTIMIZER_NS for own in at_ns]
        at_ns = ends_ns
        yield [
            message
            for stage, start_ns in enumerate(begun_ns)
            for message in laid_out(
                stage, number, start_ns, ends_ns[stage] - start_ns,
                compute=[(begin - start_ns, end - start_ns) for begin, end in computes[stage]],
                calls=[
                    CollectiveSpan(op, 1 << 20, own, True, begin - start_ns, end - start_ns, None, *peers)
                    for begin, end, op, own, *peers in sorted(calls[stage])
                ],
            )
        ]  # fmt: skip
