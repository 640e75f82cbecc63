"""The commands that the hub has forwarded, and their outcomes on its ranks.

outcome.py judges the reports. This module adds what only the hub knows: the ranks that were asked, that
ended, and that are silent. A hub that replaces another one reads the commands under way from the job's
folder, and receives the rest from the ranks.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from overlaptop.hub.history import FromRank
from overlaptop.hub.log import log_line
from overlaptop.jobs import change_log
from overlaptop.jobs.files import keep, read_regular
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord
from overlaptop.records import ChangeRecord
from overlaptop.wire import commands
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.commands import (
    ENDED,
    OBEYED,
    SENT,
    SILENT,
    TRYING,
    Command,
    CommandOutcome,
    CommandReport,
)
from overlaptop.wire.knobs import Knob, KnobFacts
from overlaptop.wire.messages import RankEnd, RankInfo
from overlaptop.wire.outcome import ANSWER_S, CommandProgress, logged_state

END_S = 600.0
"""Timeout after a rank's last report. Beyond it, the rank hangs, or its steps take minutes."""
_PATIENCE_S = {SENT: ANSWER_S, TRYING: 3_600.0}
"""Timeouts by a rank's last report, else END_S. A trial takes as long as its steps."""
_MAX_UNDER_WAY = _MAX_DONE = 64
"""Maximum commands. Tuning a knob takes dozens of trials."""
_MAX_FILE_BYTES = 1 << 18
_SHORT_CHARS = 40
"""Maximum length of a rank's text if those of thousands of ranks do not fit into one frame."""


@dataclass(slots=True)
class HubExecution:
    """One command and its progress in the hub."""

    execution: CommandProgress
    reported_s: float
    """When a rank last reported, or the command was forwarded."""
    knob: Knob | None
    outcome: CommandOutcome
    ended_as: str = ""
    """The last final state passed to ``ended``."""
    forgotten: bool = False
    """Another process has replaced a rank that reported on it, so it no longer describes any rank."""


class CommandExecutions:
    """The last commands. Times are on the hub's clock.

    Reports are received one by one, and judged together by `settle`.
    """

    def __init__(self, ended: Callable[[HubExecution], None], path: Path, now_s: float) -> None:
        """``ended``: called when a command is done, and again if its outcome changes later.

        ``path``: file that keeps the commands under way for the next hub.
        """
        self._ended = ended
        self._path = path
        self._knobs_of: int | None = None
        """Lowest rank that has described its knobs."""
        self._knobs: dict[str, Knob] = {}
        self._pids: dict[int, int] = {}
        self._dirty: set[str] = set()
        self._all: dict[str, HubExecution] = {
            execution.command.id: HubExecution(execution, now_s, None, execution.outcome())
            for execution in _kept(path)
        }

    @property
    def under_way(self) -> tuple[Command, ...]:
        """Commands that are not done, oldest first."""
        return tuple(each.execution.command for each in self._all.values() if not each.outcome.done)

    def knows(self, command_id: str) -> bool:
        return command_id in self._all

    def replay(self) -> list[bytes]:
        """Return the frames of all commands for a new dashboard, oldest first."""
        frames = []
        for each in self._all.values():
            if not each.forgotten:
                frames += [encode(each.execution.command), _encoded(each.outcome)]
        return frames

    def begin(self, command: Command, ranks: Collection[int], now_s: float) -> None:
        execution = CommandProgress.begin(command, ranks)
        self._all[command.id] = HubExecution(
            execution, now_s, self._knobs.get(command.knob), execution.outcome()
        )
        self._dirty.add(command.id)
        for oldest in self.under_way[:-_MAX_UNDER_WAY]:
            self._all[oldest.id].execution.lose_all(SILENT)
            self._dirty.add(oldest.id)
        self._keep()

    def receive(self, message: FromRank, now_s: float) -> None:
        match message:
            case KnobFacts() if self._knobs_of is None or message.rank <= self._knobs_of:
                self._knobs_of = message.rank
                self._knobs = {knob.name: knob for knob in message.knobs}
            case CommandReport() if (known := self._all.get(message.command)) is not None:
                known.reported_s = now_s
                known.execution.report(message)
                self._dirty.add(message.command)
            case RankInfo():
                # A new process of the rank, while the hub still had the connection of the previous one.
                if self._pids.get(message.rank, message.pid) != message.pid:
                    self._lose(message.rank)
                    self._forget(message.rank)
                self._pids[message.rank] = message.pid
            case RankEnd():
                self._lose(message.rank)
                if message.rank == self._knobs_of:
                    self._knobs_of = None

    def settle(self) -> list[bytes]:
        """Judge new reports. Returns the frames for dashboards."""
        frames = []
        # One at a time: `ended` may begin another command.
        while self._dirty:
            self._dirty.remove(key := min(self._dirty))
            each = self._all[key]
            outcome = each.execution.outcome()
            if not each.forgotten:
                frames.append(_encoded(outcome))
            was_done, each.outcome = each.outcome.done, outcome
            if outcome.done != was_done:
                self._keep()
            if outcome.done and logged_state(outcome) != each.ended_as:
                each.ended_as = logged_state(outcome)
                self._ended(each)
        return frames

    def tick(self, now_s: float) -> None:
        """Give up on ranks that report nothing. Called once a second."""
        for key, each in self._all.items():
            silent_s = now_s - each.reported_s
            if each.outcome.done or silent_s <= ANSWER_S:
                continue
            for rank in each.outcome.ranks:
                is_silent = silent_s > _PATIENCE_S.get(rank.reported, END_S)
                if is_silent and not rank.lost and each.execution.lose(rank.rank, SILENT):
                    self._dirty.add(key)

    def close(self) -> None:
        self.settle()
        for each in self._all.values():
            if not each.outcome.done:
                each.execution.lose_all(SILENT)
                each.outcome = replace(each.execution.outcome(), reason="the hub ended first")
                self._ended(each)

    def _lose(self, rank: int) -> None:
        for key, each in self._all.items():
            if each.execution.lose(rank, ENDED):
                self._dirty.add(key)

    def _forget(self, rank: int) -> None:
        for each in self._all.values():
            known = each.execution.ranks.get(rank)
            each.forgotten |= known is not None and known.reported != SENT

    def _keep(self) -> None:
        done = [key for key, each in self._all.items() if each.outcome.done and key not in self._dirty]
        for key in done[: max(0, len(done) - _MAX_DONE)]:
            del self._all[key]
        frames = (
            frame(encode(each.execution.command)) + frame(_encoded(each.outcome))
            for each in self._all.values()
            if not each.outcome.done
        )
        # Without the file, the next hub knows of no commands under way, and logs nothing.
        keep(self._path, b"".join(frames))


def log_change(job: JobRecord, ended: HubExecution) -> None:
    """Log a command that changes a knob permanently, and its outcome."""
    command, outcome, knob = ended.execution.command, ended.outcome, ended.knob
    if command.name not in commands.CHANGES:
        return
    original, old = ("", "") if knob is None else (knob.original_text, knob.value_text)
    wanted = str(commands.argument(command, "value")) if command.name == commands.SET else original
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


def _kept(path: Path) -> Iterable[CommandProgress]:
    command: Command | None = None
    try:
        for payload in FrameReader().feed(read_regular(path, _MAX_FILE_BYTES)):
            message = decode(payload)
            if isinstance(message, Command):
                command = message
            elif isinstance(message, CommandOutcome) and command and command.id == message.command:
                yield CommandProgress.resume(command, message)
    except (OSError, WireError):
        return
