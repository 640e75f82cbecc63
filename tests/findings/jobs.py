"""Evidence of a job that is made of a few words: what each rank does in each step before its all-reduce."""

from dataclasses import replace as with_fields

from msgspec.structs import replace

from overlaptop.findings.find import find

from . import timelines
from .timelines import Timeline, call

STEPS = 12
RANKS = 4
TRANSFER_MS = 5
OPTIMIZER_MS = 5


def job(
    does, *facts, ranks=RANKS, steps=STEPS, exact=True, watched=True, changed=None, only=None, infos=None,
    gpu=None, **changes
):  # fmt: skip
    """The evidence of a running job.

    ``does(rank, number)`` is what the rank does in that step, in order, as pairs of a word and ms:
    ``compute``, ``idle`` and ``copy``. Then come an all-reduce of all ranks, which ends TRANSFER_MS
    after the last rank began it, and an optimizer of OPTIMIZER_MS. ``facts``: messages more.
    ``watched``: with timelines, each as ``changed`` makes it. ``only``: whether a rank makes a step at all.
    ``infos(rank)``: what its RankInfo has otherwise. ``gpu``: the one that all ranks share. ``changes``: of
    the totals, functions of rank and number.
    """

    def lay(rank, number):
        parts = does(rank, number)
        begin_ms = sum(ms for _, ms in parts)
        end_ms = TRANSFER_MS + max(sum(ms for _, ms in does(each, number)) for each in range(ranks))
        step_ms = end_ms + OPTIMIZER_MS
        lanes, at_ms = {"compute": [], "copy": [], "idle": []}, 0
        for name, ms in parts:
            lanes[name].append((at_ms, at_ms + ms))
            at_ms += ms
        lanes["compute"].append((end_ms, step_ms))
        forward = ("forward", lanes["compute"][0][0], begin_ms)
        phases = (forward, ("backward", begin_ms, end_ms), ("optimizer", end_ms, step_ms))
        reduced = call("allreduce_", begin_ms, end_ms, 1)
        return Timeline(step_ms, lanes["compute"], (reduced,), lanes["copy"], phases)

    def told(totals, detail):
        rank, number = totals.rank, totals.step
        if only is not None and not only(rank, number):
            return
        yield replace(totals, **{name: of(rank, number) for name, of in changes.items()})
        if watched:
            yield changed(detail) if changed else detail

    return timelines.job(
        lay, *facts, ranks=ranks, steps=steps, exact=exact, infos=infos, told=told, gpu=gpu
    )


def rules(evidence):
    """The names of the rules that found something, and of which ranks."""
    return {(each.rule, each.ranks) for each in find(evidence)}


def the(evidence, rule):
    """What this rule found: one."""
    (found,) = [each for each in find(evidence) if each.rule == rule]
    assert found.gain_ns is None or found.gain_ns > 0
    return found


def healthy(rank, number):
    """All ranks alike, but for a little."""
    return [("idle", 1), ("compute", 60 + 0.1 * ((rank + number) % RANKS))]


def after(earlier, evidence):
    """This evidence, of a job whose first steps were those of ``earlier`` until it changed."""
    first = len(earlier.ranks[0].history)
    return with_fields(evidence, first=first, ranks={
        rank: replace(view, history=(*earlier.ranks[rank].history, *view.history[first:]))
        for rank, view in evidence.ranks.items()
    })  # fmt: skip
