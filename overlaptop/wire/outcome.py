"""Judges the outcome of a command from its ranks' reports. Pure, and the only module that does so.

All ranks act or none does. While a lost rank may still have acted, nobody can say that a change was not
made, so the outcome is unknown, not failed. A later report corrects it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from overlaptop.wire.commands import (
    ACCEPTED,
    CHANGED,
    CHANGES,
    ENDED,
    ENDED_BADLY,
    ENDED_WELL,
    FAILED,
    OBEYED,
    OBEYING,
    SENT,
    SILENT,
    STAGES,
    UNKNOWN,
    UNREACHABLE,
    Command,
    CommandOutcome,
    CommandReport,
    RankOutcome,
    names_a_rank,
)

ANSWER_S = 15.0
"""Longer than ranks wait for each other: a rank that has reported nothing by then will report nothing."""
_FINAL = (*ENDED_WELL, *ENDED_BADLY)
_VERBS = {"refused": "refused", "busy": "is busy", FAILED: "failed", UNKNOWN: "does not know"}
_LOST = {
    # how a rank was lost, and whether some may have made the change
    (ENDED, True): (UNKNOWN, "ended before it reported"),
    (SILENT, True): (UNKNOWN, "has not reported"),
    (ENDED, False): (FAILED, "ended before it was done"),
    (SILENT, False): (FAILED, "does not answer"),
}


@dataclass(slots=True)
class CommandProgress:
    """The ranks' reports on one command."""

    command: Command
    ranks: dict[int, RankOutcome]
    step: int | None = None
    old: str = ""
    new: str = ""

    @classmethod
    def begin(cls, command: Command, ranks: Iterable[int]) -> "CommandProgress":
        return cls(command, {rank: RankOutcome(rank, SENT, SENT, "") for rank in ranks})

    @classmethod
    def resume(cls, command: Command, outcome: CommandOutcome) -> "CommandProgress":
        known = {each.rank: each for each in outcome.ranks}
        return cls(command, known, outcome.step, outcome.old, outcome.new)

    def report(self, report: CommandReport) -> None:
        """Add a rank's report. A late report never reverts a newer one."""
        rank = self.ranks.get(report.rank)
        # On a rank, the thread that acts may report before the thread that agrees.
        stage = STAGES.index
        if rank is not None and stage(report.state) < stage(rank.reported):
            self.ranks[report.rank] = replace(rank, lost="")
        else:
            self.ranks[report.rank] = RankOutcome(report.rank, report.state, report.state, report.text)
        if report.step is not None:
            self.step = max(report.step, self.step or 0)
        self.old, self.new = self.old or report.old, self.new or report.new

    def lose(self, rank: int, lost: str) -> bool:
        """Stop expecting the rank's final report. ``lost``: one of LOST.

        Returns whether that is a change: False if the rank was not asked, or has sent its final report.
        """
        known = self.ranks.get(rank)
        if known is None or known.reported in _FINAL or known.lost == lost:
            return False
        self.ranks[rank] = replace(known, lost=lost)
        return True

    def unanswered(self) -> CommandOutcome:
        return replace(self.outcome(), state=SENT, reason="", done=False)

    def lose_all(self, lost: str) -> None:
        for rank in tuple(self.ranks):
            self.lose(rank, lost)

    def outcome(self) -> CommandOutcome:
        numbers = sorted(self.ranks)
        return _judged(self.command, [self.ranks[rank] for rank in numbers], self.step, self.old, self.new)


def merged(
    command: Command, outcomes: Sequence[CommandOutcome], unreachable: Mapping[int, str]
) -> CommandOutcome:
    """Merge the outcomes of one command on several hubs' ranks.

    Args:
        command: the same for all hubs.
        outcomes: one of each hub, at least one.
        unreachable: ranks that cannot be asked any more, and why.
    """
    ranks: dict[int, RankOutcome] = {}
    for outcome in outcomes:
        for each in outcome.ranks:
            ranks.setdefault(each.rank, each)
    for rank, why in unreachable.items():
        known = ranks.get(rank)
        if known is not None and not known.lost and known.reported not in _FINAL:
            ranks[rank] = replace(known, text=why, lost=UNREACHABLE)
    if not ranks and not all(outcome.done for outcome in outcomes):
        return outcomes[0] if not outcomes[0].done else outcomes[-1]
    return _judged(
        command,
        [ranks[rank] for rank in sorted(ranks)],
        max((each.step for each in outcomes if each.step is not None), default=None),
        next((each.old for each in outcomes if each.old), ""),
        next((each.new for each in outcomes if each.new), ""),
    )


def logged_state(outcome: CommandOutcome) -> str:
    """Return the outcome as one word for the log. If one rank refuses, the command failed on the others."""
    if outcome.state != FAILED:
        return outcome.stage
    states = {each.state for each in outcome.ranks}
    return next((state for state in ENDED_BADLY if state in states), FAILED)


def _judged(
    command: Command, ranks: Sequence[RankOutcome], step: int | None, old: str, new: str
) -> CommandOutcome:
    indeterminate = _may_have_acted(command, ranks)
    judged = tuple(_judged_rank(each, command, indeterminate=indeterminate) for each in ranks)
    failed = [each for each in judged if each.state in ENDED_BADLY]
    unknown = [each for each in judged if each.state == UNKNOWN]
    reason = ""
    if not judged:
        state, reason = FAILED, "no rank is there to answer"
    elif failed:
        state, reason = FAILED, _why(failed)
        if changed := [str(each.rank) for each in judged if each.state == CHANGED]:
            reason = f"changed on rank{'s' * (len(changed) > 1)} {', '.join(changed)} only: {reason}"
    elif unknown:
        state, reason = UNKNOWN, _why(unknown)
    elif all(each.state in ENDED_WELL for each in judged):
        state = OBEYED
    else:
        state = SENT if any(each.state == SENT for each in judged) else OBEYING
    return CommandOutcome(
        command=command.id,
        state=state,
        reason=reason,
        step=step,
        done=all(each.state in (*_FINAL, UNKNOWN) for each in judged),
        ranks=judged,
        old=old,
        new=new,
    )


def _may_have_acted(command: Command, ranks: Iterable[RankOutcome]) -> bool:
    """Whether a lost rank may have made a change. A capture without a report from the rank is no change."""
    # Ranks report their agreement a second before they act, so a job that ended before that changed
    # nothing.
    return command.name in CHANGES and any(
        each.reported not in (SENT, ACCEPTED) or each.lost != ENDED for each in ranks
    )


def _judged_rank(each: RankOutcome, command: Command, *, indeterminate: bool) -> RankOutcome:
    if not each.lost:
        return each
    if each.lost == UNREACHABLE:
        return replace(each, state=UNKNOWN if command.name in CHANGES else FAILED)
    state, text = _LOST[each.lost, indeterminate]
    return replace(each, state=state, text=f"rank {each.rank} {text}")


def _why(ranks: Sequence[RankOutcome]) -> str:
    # A text about another rank ("rank 3 does not answer") names the cause. Other texts name its effects.
    first = min(ranks, key=lambda each: not names_a_rank(each.text))
    if names_a_rank(first.text):
        return first.text
    return f"rank {first.rank} {_VERBS[first.state]}: {first.text}"
