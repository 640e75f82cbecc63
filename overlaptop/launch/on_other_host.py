"""The RemoteLauncher: one bundled workload at a time, started from a dashboard, on another host."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace

from overlaptop.fleet.cluster_session import HostsSession
from overlaptop.jobs.record import JobRecord
from overlaptop.launch.for_other_host import WITHOUT_OWNER_S
from overlaptop.launch.launcher import placement_on
from overlaptop.launch.request import (
    LaunchError,
    LaunchPhase,
    LaunchPlan,
    LaunchRequest,
    LaunchStatus,
    checked,
)
from overlaptop.remote.host import RemoteHost
from overlaptop.wire.codec import WireError
from overlaptop.wire.relaying import RelayLaunchStatus
from overlaptop.workloads.catalog import WORKLOADS, Workload
from overlaptop.workloads.options import Defaults

CLEAR_S = 3.0
"""For a host to report that what was started there is being ended."""
_TICK_S = 0.05
_NO_HOST = "no host is there to start it on"


class RemoteLauncher:
    """A JobLauncher for other hosts: their relays check each request and carry it out.

    What was started is ended WITHOUT_OWNER_S after its connection was lost, if no later connection of this
    dashboard has become its owner by then (RemoteHost sees to that).
    """

    def __init__(self, session: HostsSession, workloads: Sequence[Workload] = WORKLOADS) -> None:
        self.workloads = workloads
        self._session = session
        self._status = LaunchStatus()
        self._host: RemoteHost | None = None
        """Where the newest request was sent."""
        self._reported: RelayLaunchStatus | None = None
        """What its host reported last."""
        self._job = ""
        """Key of the newest job, once it is known."""

    # A JobLauncher

    @property
    def hosts(self) -> Sequence[str]:
        """Those that are reached and start something."""
        return tuple(host.name for host in self._session.hosts if not _fault(host))

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """What would be run for a request, or why it would not: as far as that can be known from here."""
        host = self._host_of(request)
        request = request if host is None else replace(request, host=host.name)
        try:
            _, given = checked(request, self.workloads)
        except LaunchError as error:
            return LaunchPlan(request, str(error))
        gpus = None if host is None or host.hello is None else host.hello.gpus
        device = given.get("device", "auto")
        if host is None or (fault := _fault(host)):
            return LaunchPlan(request, _NO_HOST if host is None else fault)
        # As far as the number of GPUs tells; the host decides, and may know better.
        nproc, where = request.nproc or 0, "its GPUs, else its CPU"
        defaults: Defaults = "cpu"
        if gpus is not None or device == "cpu":
            try:
                placement = placement_on(gpus or 0, request.nproc, str(device))
            except LaunchError as error:
                return LaunchPlan(request, f"{host.name}: {error}")
            nproc, defaults, where = placement.nproc, placement.defaults, placement.in_words
        return LaunchPlan(
            request, "", _command_line(request), f"{host.name}: {where}", nproc, defaults, given
        )

    def start(self, plan: LaunchPlan) -> None:
        """End the job before and start this one there. Raises ValueError for a plan with a fault."""
        if plan.fault:
            raise ValueError(plan.fault)
        host, request = self._host_of(plan.request), plan.request
        before = self.running
        if self._host is not None and self._host is not host and self._is_under_way:
            self._host.launch(())
        self._host, self._reported, self._job = host, None, ""
        fault = _NO_HOST if host is None else _fault(host)
        if host is not None and not fault:
            try:
                if not host.launch((request.workload, *request.options), request.nproc):
                    fault = f"the connection to {host.name} is gone"
            except WireError as error:
                fault = str(error)
        phase = LaunchPhase.OVER if fault else LaunchPhase.ENDING
        self._status = LaunchStatus(
            phase, self._status.number + 1, request, plan.command_line,
            "" if fault else before, bool(fault), fault,
        )  # fmt: skip

    def stop(self) -> None:
        """End the job there."""
        if self._host is not None and self.running and self._host.launch(()):
            self._reported = None
            self._status = LaunchStatus(
                LaunchPhase.ENDING, self._status.number + 1, None, "", self._status.label
            )

    def status(self) -> LaunchStatus:
        """How the newest request goes, as far as its host has reported."""
        host, status = self._host, self._status
        if host is None or status.phase in (LaunchPhase.NOTHING, LaunchPhase.OVER):
            return status
        if not host.up:
            how = (
                f"the connection to {host.name} is lost, {WITHOUT_OWNER_S:.0f} s after which the job is "
                "ended: not known how it is"
            )
            return self._set_phase(LaunchPhase.UNKNOWN, how=how)
        reported = host.launch_status
        if reported is None:
            how = f"the connection to {host.name} is back: asking how it is"
            asks = status.phase is LaunchPhase.UNKNOWN
            return self._set_phase(LaunchPhase.UNKNOWN, how=how) if asks else status
        self._reported = reported
        self._job = reported.job or self._job
        phase = LaunchPhase[reported.phase.upper()]
        if status.request is None and phase is not LaunchPhase.ENDING:
            phase = LaunchPhase.NOTHING  # what was to be ended has ended
        return self._set_phase(
            phase,
            failed=reported.failed and phase is LaunchPhase.OVER,
            how=reported.how,
            command_line=reported.command_line,
        )

    def output(self) -> Sequence[str]:
        """The last lines of the newest job that its host has passed on."""
        return self._reported.output if self._reported is not None else ()

    def owns(self, record: JobRecord) -> bool:
        """Whether `record` is the job that was started last."""
        return bool(self._job) and record.job == self._job

    @property
    def running(self) -> str:
        """Label of the job that ends when this is closed; empty: none."""
        status = self.status()
        if status.phase is LaunchPhase.ENDING:
            return status.ending
        return status.label if status.phase is LaunchPhase.RUNNING else ""

    # For those who opened it

    def close(self) -> None:
        """Have what was started ended. Waits until its host has answered, not for the end itself."""
        host = self._host
        if host is None or not self._is_under_way or not host.launch(()):
            return
        deadline_s = time.monotonic() + CLEAR_S
        while host.up and host.launch_status is None and time.monotonic() < deadline_s:
            self._session.pause(_TICK_S)
            host.poll()

    @property
    def _is_under_way(self) -> bool:
        """Whether its host has something to end, or will have."""
        return self.status().phase in (LaunchPhase.ENDING, LaunchPhase.RUNNING, LaunchPhase.UNKNOWN)

    def _set_phase(
        self, phase: LaunchPhase, *, failed: bool = False, how: str = "", command_line: str = ""
    ) -> LaunchStatus:
        status = self._status
        ending = status.ending if phase is LaunchPhase.ENDING else ""
        self._status = replace(
            status, phase=phase, ending=ending, failed=failed, how=how,
            command_line=command_line or status.command_line,
        )  # fmt: skip
        return self._status

    def _host_of(self, request: LaunchRequest) -> RemoteHost | None:
        hosts = self._session.hosts
        if request.host:
            return next((host for host in hosts if host.name == request.host), None)
        alone = hosts[0] if len(hosts) == 1 else None
        return next((host for host in hosts if not _fault(host)), alone)


def _fault(host: RemoteHost) -> str:
    """Why nothing can be started there; empty: it can."""
    if not host.up:
        return f"{host.name} cannot be reached" + (f": {host.note}" if host.note else "")
    if host.readonly:
        return f"{host.name} is read-only"
    return ""


def _command_line(request: LaunchRequest) -> str:
    """What a person would type there for the same job."""
    nproc = () if request.nproc is None else ("--nproc", str(request.nproc))
    options = ("--", *request.options) if request.options else ()
    return shlex.join(("overlaptop", "demo", request.workload, *nproc, *options))
