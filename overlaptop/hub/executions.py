"""The commands that the hub has forwarded, and their outcomes, judged from its ranks' reports.

All ranks act or none does. While a lost rank may still have acted, nobody can say that a change was not
made, so the outcome is unknown, not failed. A later report corrects it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from msgspec.structs import replace

from overlaptop.hub.history import FromRank
from overlaptop.hub.log import log_line
from overlaptop.jobs import change_log
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord
from overlaptop.records import ChangeRecord
from overlaptop.wire.codec import WireError, encode
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
    SET,
    SILENT,
    STAGES,
    TRYING,
    UNKNOWN,
    UNREACHABLE,
    Command,
    CommandOutcome,
    CommandReport,
    RankOutcome,
    argument,
    describe,
    names_a_rank,
)
from overlaptop.wire.knobs import Knob, KnobFacts
from overlaptop.wire.messages import RankEnd, RankInfo

ANSWER_S = 15.0
"""Longer than ranks wait for each other: a rank that has reported nothing by then will report nothing."""
END_S = 600.0  # Timeout after a rank's last report. Beyond it, the rank hangs, or its steps take minutes.
_PATIENCE_S = {SENT: ANSWER_S, TRYING: 3_600.0}
"""Timeouts by a rank's last report, else END_S. A trial takes as long as its steps."""
_MAX_COMMANDS = 128  # Tuning a knob takes dozens of trials
_SHORT_CHARS = 40
"""Maximum length of a rank's text if those of thousands of ranks do not fit into one frame."""
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
    def begin(cls, command: Command, ranks: Iterable[int]) -> Self:
        return cls(command, {rank: RankOutcome(rank, SENT, SENT, "") for rank in ranks})

    @classmethod
    def resume(cls, command: Command, outcome: CommandOutcome) -> Self:
        return cls(
            command, {each.rank: each for each in outcome.ranks}, outcome.step, outcome.old, outcome.new
        )

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

    def lose_all(self, lost: str) -> None:
        for rank in tuple(self.ranks):
            self.lose(rank, lost)

    def unanswered(self) -> CommandOutcome:
        return replace(self.outcome(), state=SENT, reason="", done=False)

    def outcome(self) -> CommandOutcome:
        command, ranks = self.command, [known for _, known in sorted(self.ranks.items())]
        # Whether a lost rank may have made a change: ranks report their agreement a second before they act,
        # so a job that ended before that changed nothing.
        may_have_acted = command.name in CHANGES and any(
            each.reported not in (SENT, ACCEPTED) or each.lost != ENDED for each in ranks
        )
        judged = tuple(_judged(each, command, may_have_acted=may_have_acted) for each in ranks)
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
        done = all(each.state in (*_FINAL, UNKNOWN) for each in judged)
        return CommandOutcome(command.id, state, reason, self.step, done, judged, self.old, self.new)


def merged(
    command: Command, outcomes: Sequence[CommandOutcome], unreachable: Mapping[int, str]
) -> CommandOutcome:
    """Merge the outcomes of one command on the ranks of several hubs, at least one.

    ``unreachable``: ranks that cannot be asked any more, and why.
    """
    ranks = {each.rank: each for outcome in reversed(outcomes) for each in outcome.ranks}
    for rank, why in unreachable.items():
        known = ranks.get(rank)
        if known is not None and not known.lost and known.reported not in _FINAL:
            ranks[rank] = replace(known, text=why, lost=UNREACHABLE)
    if not ranks and not all(outcome.done for outcome in outcomes):
        return outcomes[0] if not outcomes[0].done else outcomes[-1]
    step = max((each.step for each in outcomes if each.step is not None), default=None)
    old = next((each.old for each in outcomes if each.old), "")
    new = next((each.new for each in outcomes if each.new), "")
    return CommandProgress(command, ranks, step, old, new).outcome()


def logged_state(outcome: CommandOutcome) -> str:
    """Return the outcome as one word for the log. If one rank refuses, the command failed on the others."""
    if outcome.state != FAILED:
        return outcome.stage
    states = {each.state for each in outcome.ranks}
    return next((state for state in ENDED_BADLY if state in states), FAILED)


def _judged(each: RankOutcome, command: Command, *, may_have_acted: bool) -> RankOutcome:
    if not each.lost:
        return each
    if each.lost == UNREACHABLE:
        return replace(each, state=UNKNOWN if command.name in CHANGES else FAILED)
    state, text = _LOST[each.lost, may_have_acted]
    return replace(each, state=state, text=f"rank {each.rank} {text}")


def _why(ranks: Sequence[RankOutcome]) -> str:
    # A text about another rank ("rank 3 does not answer") names the cause. Other texts name its effects.
    first = min(ranks, key=lambda each: not names_a_rank(each.text))
    if names_a_rank(first.text):
        return first.text
    return f"rank {first.rank} {_VERBS[first.state]}: {first.text}"


@dataclass(slots=True)
class HubExecution(CommandProgress):
    """One command and its progress in the hub."""

    published: CommandOutcome = field(init=False)  # The outcome as last judged
    reported_s: float = 0.0  # When a rank last reported, or the command was forwarded
    knob: Knob | None = None
    ended_as: str = ""  # The last final state passed to ``ended``

    def __post_init__(self) -> None:
        self.published = self.outcome()


class CommandExecutions:
    """The last commands. Times are monotonic.

    Reports are received one by one, and judged together by `settle`.
    """

    def __init__(self, ended: Callable[[HubExecution], None]) -> None:
        """``ended``: called when a command is done, and again if its outcome changes later."""
        self._ended = ended
        self._knobs_of: int | None = None  # Lowest rank that has described its knobs
        self._knobs: dict[str, Knob] = {}
        self._pids: dict[int, int] = {}
        self._new: list[bytes] = []  # Commands that dashboards have not been sent
        self._dirty: set[str] = set()
        self._all: dict[str, HubExecution] = {}

    def knows(self, command_id: str) -> bool:
        return command_id in self._all

    def replay(self) -> list[bytes]:
        """Return the frames of all commands for a new dashboard, oldest first."""
        frames = []
        for each in self._all.values():
            frames += [encode(each.command), _encoded(each.published)]
        return frames

    def take(
        self, command: Command, ranks: Iterable[int], forward: Callable[[bytes], None], now_s: float
    ) -> None:
        """Forward a dashboard's command to all ranks, and to all dashboards, which show its author."""
        if self.knows(command.id):
            return
        # The hub and its ranks share a clock. Ranks use this time to refuse commands that arrive late.
        command = replace(command, at_ns=time.time_ns())
        log_line(f"{describe(command)}, asked by {command.by!r}")
        self.begin(command, ranks, now_s)
        self._new.append(encode(command))
        forward(encode(command))

    def begin(self, command: Command, ranks: Iterable[int], now_s: float) -> None:
        execution = self._all[command.id] = HubExecution.begin(command, ranks)
        execution.reported_s, execution.knob = now_s, self._knobs.get(command.knob)
        self._dirty.add(command.id)
        if len(self._all) > _MAX_COMMANDS:
            self._forget(next(iter(self._all)), "too many commands came after it")

    def receive(self, message: FromRank, now_s: float) -> None:
        match message:
            case KnobFacts() if self._knobs_of is None or message.rank <= self._knobs_of:
                self._knobs_of = message.rank
                self._knobs = {knob.name: knob for knob in message.knobs}
            case CommandReport() if (known := self._all.get(message.command)) is not None:
                known.reported_s = now_s
                known.report(message)
                self._dirty.add(message.command)
            case RankInfo():
                # A new process of the rank, while the hub still had the connection of the previous one.
                if self._pids.get(message.rank, message.pid) != message.pid:
                    self._lose(message.rank)
                    for key, each in tuple(self._all.items()):
                        former = each.ranks.get(message.rank)
                        if former is not None and former.reported != SENT:
                            self._forget(key, f"another process is rank {message.rank} now")
                self._pids[message.rank] = message.pid
            case RankEnd():
                self._lose(message.rank)
                if message.rank == self._knobs_of:
                    self._knobs_of = None

    def settle(self) -> list[bytes]:
        """Judge new reports. Returns the frames for dashboards."""
        frames, self._new = self._new, []
        for key in sorted(self._dirty):
            each = self._all[key]
            outcome = each.outcome()
            frames.append(_encoded(outcome))
            each.published = outcome
            if outcome.done and logged_state(outcome) != each.ended_as:
                each.ended_as = logged_state(outcome)
                self._ended(each)
        self._dirty.clear()
        return frames

    def tick(self, now_s: float) -> None:
        """Give up on ranks that report nothing. Called once a second."""
        for key, each in self._all.items():
            silent_s = now_s - each.reported_s
            if each.published.done or silent_s <= ANSWER_S:
                continue
            for rank in each.published.ranks:
                is_silent = silent_s > _PATIENCE_S.get(rank.reported, END_S)
                if is_silent and not rank.lost and each.lose(rank.rank, SILENT):
                    self._dirty.add(key)

    def close(self) -> None:
        self.settle()
        for each in self._all.values():
            self._give_up(each, "the hub ended first")

    def _lose(self, rank: int) -> None:
        self._dirty |= {key for key, each in self._all.items() if each.lose(rank, ENDED)}

    def _forget(self, key: str, reason: str) -> None:
        self._dirty.discard(key)
        self._give_up(self._all.pop(key), reason)

    def _give_up(self, each: HubExecution, reason: str) -> None:
        if not each.published.done:
            each.lose_all(SILENT)
            each.published = replace(each.outcome(), reason=reason)
            self._ended(each)


def log_change(job: JobRecord, ended: HubExecution) -> None:
    """Log a command that changes a knob permanently, and its outcome."""
    command, outcome, knob = ended.command, ended.published, ended.knob
    if command.name not in CHANGES:
        return
    original, old = ("", "") if knob is None else (knob.original_text, knob.value_text)
    wanted = str(argument(command, "value")) if command.name == SET else original
    changed = outcome.state == OBEYED
    try:
        change_log.append(
            ChangeRecord(
                at_ns=command.at_ns,
                job=job.job,
                script=job.script,
                host=job.host,
                by=command.by,
                knob=command.knob,
                old=(changed and outcome.old) or old or None,
                new=(changed and outcome.new) or wanted or None,
                step=outcome.step,
                outcome=logged_state(outcome),
                reason=outcome.reason,
                command=command.id,
            )
        )
    except (OSError, JobFolderError) as fault:
        log_line(f"cannot write {change_log.NAME}: {fault}")


def _encoded(outcome: CommandOutcome) -> bytes:
    try:
        return encode(outcome)
    except WireError:
        ranks = (replace(each, text=each.text[:_SHORT_CHARS]) for each in outcome.ranks)
        return encode(replace(outcome, ranks=tuple(ranks)))
