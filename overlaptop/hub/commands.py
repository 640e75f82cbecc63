"""Passes dashboards' commands on to the ranks, and logs their outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from overlaptop.hub.executions import CommandExecutions, HubExecution
from overlaptop.hub.history import FromRank
from overlaptop.hub.log import log_line
from overlaptop.jobs import change_log
from overlaptop.jobs.change_log import LoggedChange
from overlaptop.jobs.folder import COMMANDS_NAME, JobFolderError, job_dir
from overlaptop.jobs.record import JobRecord
from overlaptop.wire import commands
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import OBEYED, Command
from overlaptop.wire.outcome import logged_state


class CommandBroker:
    """Handles the commands of one hub."""

    def __init__(
        self,
        job: JobRecord,
        *,
        connected_ranks: Callable[[], tuple[int, ...]],
        send_to_ranks: Callable[[bytes], None],
        publish: Callable[[bytes], None],
        clock_s: Callable[[], float],
    ) -> None:
        """``publish``: sends a frame to every dashboard. ``clock_s``: the hub's clock."""
        self._clock_s = clock_s
        self._job = job
        self._connected_ranks = connected_ranks
        self._send_to_ranks = send_to_ranks
        self._publish = publish
        self._executions = CommandExecutions(self._on_end, job_dir(job.job) / COMMANDS_NAME, clock_s())

    def replay(self) -> list[bytes]:
        """Return the frames of the commands for a new dashboard."""
        return self._executions.replay()

    def take(self, command: Command) -> None:
        """Pass a dashboard's command on to every rank, and to every dashboard,
        so that all know its author.
        """
        if self._executions.knows(command.id):
            return
        # The hub and its ranks share a clock. Ranks use this time to refuse commands that arrive too late.
        stamped = replace(command, at_ns=time.time_ns())
        payload = encode(stamped)
        log_line(f"{commands.in_words(stamped)}, asked by {stamped.by!r}")
        self._publish(payload)
        self._executions.begin(stamped, self._connected_ranks(), self._clock_s())
        self._send_to_ranks(payload)

    def receive(self, message: FromRank) -> None:
        """Process a rank's message, in case it is about a command."""
        self._executions.receive(message, self._clock_s())

    def settle(self) -> None:
        """Publish the outcomes that changed since the last call.
        Called once per round of the hub's loop.
        """
        for frame in self._executions.settle():
            self._publish(frame)

    def tick(self) -> None:
        """Check timeouts. Called once a second."""
        self._executions.tick(self._clock_s())

    def close(self) -> None:
        """Finish when the hub ends."""
        self._executions.close()

    def _on_end(self, ended: HubExecution) -> None:
        """Log a command that is done on every rank, or whose outcome was corrected later."""
        if ended.execution.command.name in commands.CHANGES:
            self._log(ended)

    def _log(self, ended: HubExecution) -> None:
        command, outcome, knob, job = ended.execution.command, ended.outcome, ended.knob, self._job
        if command.name == commands.SET:
            wanted = str(commands.argument(command, "value"))
        else:
            wanted = knob.original_text if knob is not None else ""
        changed = outcome.state == OBEYED
        try:
            change_log.append(
                LoggedChange(
                    at_ns=command.at_ns,
                    job=job.job,
                    script=job.script,
                    host=job.host,
                    by=command.by,
                    knob=command.knob,
                    old=(changed and outcome.old) or (knob is not None and knob.value_text) or None,
                    new=(changed and outcome.new) or wanted or None,
                    step=outcome.step,
                    outcome=logged_state(outcome),
                    reason=outcome.reason,
                    command=command.id,
                )
            )
        except (OSError, JobFolderError) as fault:
            log_line(f"cannot write {change_log.NAME}: {fault}")
