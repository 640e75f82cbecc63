"""The agent of one rank: hooks on the job's threads, and one thread of its own that measures and sends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from overlaptop.agent import placement
from overlaptop.agent.clock import now_ns
from overlaptop.agent.guest import Guest
from overlaptop.agent.options import AgentOptions
from overlaptop.agent.sender import Sender
from overlaptop.wire.messages import Notice, RankEnd, RankInfo

if TYPE_CHECKING:  # torch and numpy come with the job, not before it
    from overlaptop.agent.sources.base import Edge, Source
    from overlaptop.agent.steps import StepHooks

PERIOD_S = 0.1
FAREWELL_S = 0.5
"""The longest that the end of the job may wait for the last messages to leave."""
OUTSTANDING_S = 60.0
"""The longest that it may wait for collectives still under way, for which torch waits at its end too."""
MAX_NOTICES = 64


class Agent:
    """One per process. `start` opens the line to the hub, `hook_torch` puts the hooks in."""

    def __init__(self, options: AgentOptions, script: str) -> None:
        """``script``: the job's script as it was named on the command line."""
        self.guest = Guest(self._notice)
        self._steps: StepHooks | None = None
        self._begin(options, script)
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._farewell)

    def _begin(self, options: AgentOptions, script: str) -> None:
        """All that belongs to one process; the hooks belong to whatever process has forked off it."""
        self._options = options
        self._script = script
        self._place = placement.from_environment()
        self._sender: Sender | None = None
        self._notices: deque[tuple[int, str, str]] = deque(maxlen=MAX_NOTICES)
        self._source: Source | None = None
        self._device = ""
        self._backend = ""
        self._pid = os.getpid()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="overlaptop", daemon=True)

    def start(self) -> None:
        """Start the agent's thread; a job whose launcher numbers its ranks shows from here on."""
        self._thread.start()

    @property
    def asleep(self) -> bool:
        """Whether this is the copy that a fork left in a child, silent until `wake`."""
        return self._pid != os.getpid()

    def wake(self, options: AgentOptions, script: str) -> None:
        """Measure this forked child as a rank of its own, through the hooks that it inherited."""
        self._begin(options, script)
        self.guest.active = True
        self.start()

    def hook_torch(self) -> None:
        """Put the hooks into torch, which must have been imported."""
        self.guest.guarded("putting the hooks in", self._hook_torch)()

    def step(self) -> None:
        """End a step here. See `overlaptop.agent.step`."""
        if self._steps is not None:
            self._steps.mark()

    def _hook_torch(self) -> None:
        if self._steps is not None:
            return
        import torch.distributed as dist

        from overlaptop.agent.steps import StepHooks

        self._steps = StepHooks(self.guest, self._on_boundary, self._on_edge)
        self._steps.install()
        if self._options.phases_only or not dist.is_available():
            return
        from overlaptop.agent.collectives import CollectiveHooks
        from overlaptop.agent.waits import WaitHooks

        CollectiveHooks(self.guest, self._current_source).install()
        WaitHooks(self.guest, self._current_source).install()

    def _current_source(self) -> Source | None:
        return self._source

    def _on_edge(self, edge: Edge) -> None:
        if self._source is not None:
            self._source.edge(edge)

    def _on_boundary(self, optimizer: Any) -> None:
        if self._source is None:
            self._source = self._choose_source(optimizer)
        if not self._backend:
            self._backend = _backend_name()
        self._source.boundary()

    def _choose_source(self, optimizer: Any) -> Source:
        """Decide at the first step's end, when the job has shown where it computes.

        Asking for a device any sooner could fix CUDA_VISIBLE_DEVICES before the script sets it.
        """
        import torch

        from overlaptop.agent.sources.host import HostSource

        options = self._options
        on_cuda = _computes_on_cuda(optimizer)
        source: Source
        if options.source == "events" or (options.source == "auto" and on_cuda):
            from overlaptop.agent.sources.events import EventsSource

            source = EventsSource(options.phases_only, options.every, "", _cuda_device_of(optimizer))
        else:
            why = "asked for" if options.source == "host" else "no CUDA device in use"
            source = HostSource(options.phases_only, options.every, why)
        try:
            source.start()
        except RuntimeError as refusal:
            source = HostSource(options.phases_only, options.every, str(refusal))
            source.start()
        self._device = torch.cuda.get_device_name(_cuda_device_of(optimizer)) if on_cuda else "cpu"
        return source

    def _notice(self, level: str, text: str) -> None:
        self._notices.append((now_ns(), level, text))

    def _run(self) -> None:
        """The agent's own thread."""
        work = self.guest.guarded("the agent's thread", self._work)
        while self.guest.active and not self._ending.wait(PERIOD_S):
            work()
        if not self.guest.active and self._source is not None:
            with contextlib.suppress(Exception):  # it may be what broke
                self._source.stop()
        while not self.guest.active:
            self._say_why()
            if self._ending.wait(1.0):
                break
        self._close()

    def _work(self) -> None:
        """One round: take finished steps, send what there is to send."""
        sender = self._sender or self._open_line()
        if sender is None:
            return
        sender.introduce(self._info())
        self._send_steps(sender)
        self._send_notices(sender)
        sender.pump()

    def _open_line(self) -> Sender | None:
        """Make the sender once the rank is known: from the launcher, else from the process group."""
        if self._place is None:
            self._place = self._late_placement()
            if self._place is None:
                return None
        place = self._place
        self._sender = Sender(place.job, self._script, place.world_size, place.starts_hub)
        return self._sender

    def _late_placement(self) -> placement.Placement | None:
        if self._steps is None:
            return None  # torch may be in the middle of its import, on another thread
        dist = sys.modules["torch.distributed"]
        if dist.is_available() and dist.is_initialized():
            return placement.of_process_group(dist.get_rank(), dist.get_world_size())
        return placement.alone() if self._source is not None else None

    def _send_steps(self, sender: Sender) -> None:
        source = self._source
        if source is None:
            return
        from overlaptop.agent import reporter

        assert self._place is not None
        newest = None
        for measured in source.take():
            sender.put(reporter.totals(measured, self._place.rank, sender.dropped + source.lost))
            newest = measured if measured.detailed else newest
        if newest is not None and sender.watched:
            sender.put(reporter.detail(newest, self._place.rank))

    def _send_notices(self, sender: Sender) -> None:
        assert self._place is not None
        while self._notices:
            at_ns, level, text = self._notices.popleft()
            sender.put(Notice(self._place.rank, at_ns, level, text))

    def _info(self) -> RankInfo:
        assert self._place is not None
        source = self._source if self.guest.active else None
        torch = sys.modules.get("torch")
        return RankInfo(
            job=self._place.job,
            rank=self._place.rank,
            local_rank=self._place.local_rank,
            world_size=self._place.world_size,
            host=self._place.host,
            pid=self._pid,
            script=self._script,
            device=self._device,
            backend=self._backend,
            source=source.name if source is not None else "none",
            source_reason=source.reason if source is not None else self._why_no_source(),
            compute_exact=source.compute_exact if source is not None else False,
            detail_every=source.detail_every if source is not None else 0,
            torch_version=str(getattr(torch, "__version__", "")),
        )

    def _why_no_source(self) -> str:
        if not self.guest.active:
            return "the agent stepped aside"
        if self._steps is None:
            return "torch is not loaded yet"
        return "no step seen yet: an optimizer's step, or overlaptop.agent.step(), ends one"

    def _say_why(self) -> None:
        """After a fault: tell the dashboard, for as long as the job runs.

        The fault may lie in any of these, so each is tried, whatever became of the others.
        """
        for say in (self._introduce, self._send_notices, self._pump):
            with contextlib.suppress(Exception):  # the log has been told
                sender = self._sender or self._open_line()
                if sender is not None:
                    say(sender)

    def _introduce(self, sender: Sender) -> None:
        sender.introduce(self._info())

    def _pump(self, sender: Sender) -> None:
        sender.pump()

    def _close(self) -> None:
        """Say goodbye; the job is ending and waits for this a moment at most."""
        try:
            if self.guest.active:
                self._work()
            sender, place = self._sender, self._place
            if sender is None or place is None:
                return
            sender.put(RankEnd(place.rank, now_ns(), clean=True))
            sender.pump()
            sender.disconnect()
        except Exception as fault:  # noqa: BLE001 - nothing may break the job's end
            self.guest.step_aside("the agent's end", fault)

    def _farewell(self) -> None:
        """At exit: let the last messages leave, and the last callbacks come.

        A thread of gloo's that wants to call Python after Python has ended aborts the process. Torch
        itself waits at exit for what gloo still has under way, so this takes no longer.
        """
        if os.getpid() != self._pid:
            return
        self._ending.set()
        self._thread.join(FAREWELL_S)
        give_up_s = monotonic() + OUTSTANDING_S
        while self._source is not None and self._source.outstanding and monotonic() < give_up_s:
            sleep(0.005)

    def _after_fork(self) -> None:
        """A DataLoader worker or another child: the hooks fall silent, the parent's line is let go."""
        self.guest.active = False
        if self._sender is not None:
            self._sender.disconnect()


def _computes_on_cuda(optimizer: Any) -> bool:
    """Whether the job's steps run on a GPU; parameters offloaded to the host do not say otherwise."""
    import torch

    if not torch.cuda.is_initialized():
        return False
    devices = {parameter.device.type for parameter in _parameters(optimizer)}
    return not devices or "cuda" in devices or _backend_name().startswith("nccl")


def _cuda_device_of(optimizer: Any) -> int | None:
    """The GPU that this optimizer's parameters live on; None: they do not say."""
    return next((p.device.index for p in _parameters(optimizer) if p.is_cuda), None)


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def _backend_name() -> str:
    """``nccl 2.28.9``, ``gloo``; empty before the process group exists."""
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return ""
    name = dist.get_backend()
    if name == "nccl" and torch.cuda.is_available():
        return f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}"
    return str(name)
