"""What dashboards ask of a job: passed on, refused or undone, and logged with what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from overlaptop.hub.executions import CommandExecutions, HubExecution
from overlaptop.hub.history import FromRank
from overlaptop.hub.log import log_line
from overlaptop.hub.search import SearchLease
from overlaptop.jobs import change_log
from overlaptop.jobs.change_log import LoggedChange
from overlaptop.jobs.folder import COMMANDS_NAME, SEARCH_NAME, JobFolderError, job_dir
from overlaptop.jobs.record import JobRecord
from overlaptop.wire import commands
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import CHANGED, Command, CommandReport
from overlaptop.wire.knobs import Search
from overlaptop.wire.outcome import logged_state

RETURN_S = 30.0
"""For the ranks of a hub that died to come to the one that takes its place."""
PATIENCE_S = 10.0
"""For a person's change to wait for a search's own to end; past that, ranks report that they are busy."""
_MAX_WAITING = 8


class CommandBroker:
    """One per hub.

    A person's command always passes. A search's does while that search goes on; and a person who changes
    what is searched for ends the search.
    """

    def __init__(
        self,
        job: JobRecord,
        *,
        connected_ranks: Callable[[], tuple[int, ...]],
        send_to_ranks: Callable[[bytes], None],
        publish: Callable[[bytes], None],
        lease_s: float,
        awaits_ranks: int,
        clock_s: Callable[[], float],
    ) -> None:
        """``publish``: sends a frame to every dashboard. ``lease_s``: how long a search may be silent.
        ``awaits_ranks``: as many as a hub before this one had when it died. ``clock_s``: the hub's.
        """
        now_s = clock_s()
        self._clock_s = clock_s
        self._job = job
        self._connected_ranks = connected_ranks
        self._send_to_ranks = send_to_ranks
        self._publish = publish
        self._began_s = now_s
        self._awaits_ranks = awaits_ranks
        folder = job_dir(job.job)
        self._executions = CommandExecutions(self._on_end, folder / COMMANDS_NAME, now_s)
        self._lease = SearchLease(folder / SEARCH_NAME, now_s, lease_s)
        self._waiting: list[tuple[Command, float]] = []
        """A person's changes that a search's own has to end for, and since when."""

    def replay(self) -> list[bytes]:
        """The frames of the commands and the search for a new dashboard."""
        search = self._lease.state
        return [*self._executions.replay(), *([encode(search)] if search is not None else [])]

    def take(self, message: Command | Search) -> None:
        """A dashboard asks for this; or it searches, or has ended its search."""
        if isinstance(message, Search):
            if (changed := self._lease.renew(message, self._clock_s())) is not None:
                self._publish_search(changed, "by itself")
            return
        command = message
        if command.search:
            objection = self._lease.objection(command)
            if not objection and self._waiting:
                objection = f"{self._waiting[0][0].by} changes something just now"
            self._pass_on(command, objection)
        elif (
            command.name in commands.CHANGES
            and self._searched_now
            and len(self._waiting) < _MAX_WAITING
            and not self._executions.knows(command.id)
        ):
            if all(command.id != waiting.id for waiting, _ in self._waiting):
                self._waiting.append((command, self._clock_s()))
        else:
            self._pass_on(command)

    def receive(self, message: FromRank) -> None:
        """A rank's message, which may be about a command."""
        self._executions.receive(message, self._clock_s())

    def settle(self) -> None:
        """Publish what has become of commands since the last call. Once a round of the hub's loop."""
        for frame in self._executions.settle():
            self._publish(frame)

    def tick(self) -> None:
        """Once a second."""
        now_s = self._clock_s()
        self._executions.tick(now_s)
        if self._waiting and now_s - self._waiting[0][1] > PATIENCE_S:
            self._pass_waiting_on()
        self._undo_search(now_s)

    def close(self) -> None:
        """The hub ends."""
        self._waiting.clear()  # nobody would log what became of them
        self._executions.close()

    @property
    def _searched_now(self) -> bool:
        """Whether a search's own change is under way."""
        return any(command.search for command in self._executions.under_way)

    def _pass_on(self, command: Command, objection: str = "") -> None:
        """A command goes to every rank, and to every dashboard, so that all know who asked for what.

        One to which there is an objection goes to the dashboards only, and is refused in the ranks' name.
        """
        if self._executions.knows(command.id):
            return
        # The hub's clock is the ranks' own: by it they refuse what has come too late.
        stamped = replace(command, at_ns=time.time_ns())
        now_s, payload, ranks = self._clock_s(), encode(stamped), self._connected_ranks()
        log_line(
            f"{commands.in_words(stamped)}, asked by {stamped.by!r}" + (objection and f": {objection}")
        )
        self._publish(payload)
        self._executions.begin(stamped, ranks, now_s)
        if not objection:
            self._send_to_ranks(payload)
            return
        for rank in ranks:
            refusal = CommandReport(
                rank, stamped.id, stamped.name, stamped.at_ns, "refused", None, objection
            )
            self._executions.receive(refusal, now_s)

    def _pass_waiting_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for command, _ in waiting:
            self._pass_on(command)

    def _publish_search(self, search: Search, why: str) -> None:
        going = "ended" if search.over else "began"
        log_line(f"search for the best {search.knob} by {search.by!r} {going}, {why}")
        self._publish(encode(search))

    def _undo_search(self, now_s: float) -> None:
        """Give the knob of a search that has fallen silent its old value back, once."""
        search, connected = self._lease.held, len(self._connected_ranks())
        if search is None or not self._lease.has_lapsed(now_s):
            return
        returning = connected < self._awaits_ranks and now_s - self._began_s < RETURN_S
        # What the search itself asked for last may still be under way: till then ranks refuse any other.
        if connected and not returning and not self._executions.under_way:
            self._pass_on(commands.make_undoing(search))
            self._publish_search(self._lease.end(), "silent: undone")

    def _on_end(self, ended: HubExecution) -> None:
        """A command is done on every rank, or it became known later what came of it."""
        command, search = ended.execution.command, self._lease.held
        if command.name in commands.CHANGES:
            self._log(ended)
            changed = ended.outcome.state == CHANGED and not command.search
            if changed and search is not None and search.knob == command.knob:
                self._publish_search(self._lease.end(), f"{command.by!r} has changed it")
        if self._waiting and not self._searched_now:
            self._pass_waiting_on()

    def _log(self, ended: HubExecution) -> None:
        command, outcome, knob, job = ended.execution.command, ended.outcome, ended.knob, self._job
        if command.name == commands.SET:
            wanted = str(commands.argument(command, "value"))
        else:
            wanted = knob.original_text if knob is not None else ""
        changed = outcome.state == CHANGED
        try:
            change_log.append(
                LoggedChange(
                    at_ns=command.at_ns,
                    job=job.job,
                    script=job.script,
                    host=job.host,
                    by=command.by,
                    search=command.search,
                    knob=command.knob,
                    was=(changed and outcome.was) or (knob is not None and knob.value_text) or None,
                    becomes=(changed and outcome.becomes) or wanted or None,
                    step=outcome.step,
                    outcome=logged_state(outcome),
                    reason=outcome.reason,
                    command=command.id,
                )
            )
        except (OSError, JobFolderError) as fault:
            log_line(f"cannot write {change_log.NAME}: {fault}")
