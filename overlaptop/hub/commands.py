"""What dashboards ask of a job: the hub passes it on, refuses it, undoes it, and logs what became of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from overlaptop.hub.changes import ChangesUnderWay, Outcome
from overlaptop.hub.history import FromRank, JobHistory
from overlaptop.hub.search import SearchLease
from overlaptop.wire import change_log, commands, endpoints
from overlaptop.wire.change_log import Change
from overlaptop.wire.codec import encode
from overlaptop.wire.endpoints import EndpointError, JobRecord
from overlaptop.wire.knobs import Search
from overlaptop.wire.messages import CHANGED, Command, CommandReport

RETURN_S = 30.0
"""For the ranks of a hub that died to come to the one that takes its place."""
PATIENCE_S = 10.0
"""For a person's change to wait for a search's own to end; past that, ranks say that they are busy."""
_MAX_WAITING = 8


@dataclass(frozen=True, slots=True)
class Lines:
    """Whom the desk speaks to."""

    ranks: Callable[[], tuple[int, ...]]
    """Numbers of those that are connected."""
    command: Callable[[bytes], None]
    """Tells it to all of them."""
    publish: Callable[[bytes], None]
    """Tells it to every dashboard."""
    deliver: Callable[[FromRank, bytes], None]
    """Takes a word in a rank's name as if the rank had said it."""


class CommandBroker:
    """One per hub. Times are those of a monotonic clock.

    A person's command always passes. A search's does while that search goes on; and a person who changes
    what is searched for ends the search.
    """

    def __init__(
        self, job: JobRecord, history: JobHistory, lines: Lines, lease_s: float, awaits_ranks: int
    ) -> None:
        """``awaits_ranks``: as many as a hub before this one had when it died."""
        now_s = time.monotonic()
        self._job = job
        self._history = history
        self._lines = lines
        self._began_s = now_s
        self._awaits_ranks = awaits_ranks
        folder = endpoints.job_dir(job.job)
        self._changes = ChangesUnderWay(self._on_end, folder / endpoints.CHANGES_NAME, now_s)
        for command in self._changes.commands:
            history.keep_command(command, encode(command), now_s)
        self._lease = SearchLease(folder / endpoints.SEARCH_NAME, now_s, lease_s)
        self._waiting: list[tuple[Command, float]] = []
        """A person's changes that a search's own has to end for, and since when."""

    @property
    def search(self) -> Search | None:
        """What a new dashboard is told: the search that goes on, else the one that ended last."""
        return self._lease.state

    def take_command(self, command: Command) -> None:
        """A dashboard asks for this."""
        if command.search:
            objection = self._lease.objection(command)
            if not objection and self._waiting:
                objection = f"{self._waiting[0][0].by} changes something just now"
            self._pass_on(command, objection)
        elif (
            command.name in commands.CHANGES
            and self._changes.of_search
            and len(self._waiting) < _MAX_WAITING
            and not self._history.knows_command(command.id)
        ):
            if all(command.id != waiting.id for waiting, _ in self._waiting):
                self._waiting.append((command, time.monotonic()))
        else:
            self._pass_on(command)

    def take_search(self, search: Search) -> None:
        """A dashboard says that it searches, or that it has ended."""
        if (told := self._lease.hear(search, time.monotonic())) is not None:
            self._tell_of_search(told, "as it says")

    def hear(self, message: FromRank, now_s: float) -> None:
        """A rank's word, which may be about a command."""
        self._changes.hear(message, now_s)

    def tick(self, now_s: float) -> None:
        """Once a second."""
        self._changes.tick(now_s)
        if self._waiting and now_s - self._waiting[0][1] > PATIENCE_S:
            self._pass_waiting_on()
        self._undo_search(now_s)

    def extend(self, lost_s: float) -> None:
        """After a time in which the hub itself could not listen."""
        self._lease.extend(lost_s)
        self._changes.extend(lost_s)

    def close(self) -> None:
        """The hub ends."""
        self._waiting.clear()  # nobody would log what became of them
        self._changes.close()

    def _pass_on(self, command: Command, objection: str = "") -> None:
        """A command goes to every rank, and to every dashboard, so that all know who asked for what.

        One to which there is an objection goes to the dashboards only, and is refused in the ranks' name.
        """
        # The hub's clock is the ranks' own: by it they tell what has come too late.
        stamped = replace(command, at_ns=time.time_ns())
        payload, now_s = encode(stamped), time.monotonic()
        if not self._history.keep_command(stamped, payload, now_s):
            return
        say(f"{commands.in_words(stamped)}, asked by {stamped.by!r}" + (objection and f": {objection}"))
        ranks = self._lines.ranks()
        self._lines.publish(payload)
        self._changes.begin(stamped, ranks, now_s)
        if not objection:
            self._lines.command(payload)
            return
        for rank in ranks:
            said = CommandReport(rank, stamped.id, stamped.name, stamped.at_ns, "refused", None, objection)
            self._lines.deliver(said, encode(said))

    def _pass_waiting_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for command, _ in waiting:
            self._pass_on(command)

    def _tell_of_search(self, search: Search, why: str) -> None:
        going = "ended" if search.over else "began"
        say(f"search for the best {search.knob} by {search.by!r} {going}, {why}")
        self._lines.publish(encode(search))

    def _undo_search(self, now_s: float) -> None:
        """Give the knob of a search that has fallen silent its old value back, once."""
        search, connected = self._lease.held, len(self._lines.ranks())
        if search is None or not self._lease.has_lapsed(now_s):
            return
        returning = connected < self._awaits_ranks and now_s - self._began_s < RETURN_S
        # What the search itself asked for last may still be under way: till then ranks refuse any other.
        if connected and not returning and not len(self._changes):
            self._pass_on(commands.make_undoing(search))
            self._tell_of_search(self._lease.end(), "silent: undone")

    def _on_end(self, ended: Outcome) -> None:
        """A command has come to its end on every rank, or it became known later to which."""
        command, search = ended.command, self._lease.held
        if command.name in commands.CHANGES:
            self._log(ended)
            changed = ended.outcome == CHANGED and not command.search
            if changed and search is not None and search.knob == command.knob:
                self._tell_of_search(self._lease.end(), f"{command.by!r} has changed it")
        if self._waiting and not self._changes.of_search:
            self._pass_waiting_on()

    def _log(self, ended: Outcome) -> None:
        command, job = ended.command, self._job
        try:
            change_log.append(
                Change(
                    at_ns=command.at_ns,
                    job=job.job,
                    script=job.script,
                    host=job.host,
                    by=command.by,
                    search=command.search,
                    knob=command.knob,
                    was=ended.was,
                    becomes=ended.becomes,
                    step=ended.step,
                    outcome=ended.outcome,
                    reason=ended.reason,
                    command=command.id,
                )
            )
        except (OSError, EndpointError) as fault:
            say(f"cannot write {change_log.NAME}: {fault}")


def say(text: str) -> None:
    """One line to the hub's log, as long as the log is small."""
    with suppress(OSError):
        if os.fstat(2).st_size < endpoints.MAX_LOG_BYTES:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(2, f"{stamp} hub {os.getpid()}: {text}\n".encode(errors="replace"))
