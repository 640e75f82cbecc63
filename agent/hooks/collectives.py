"""Sees every collective by hooks in the dispatcher, below both Python and C++ callers.

c10d's operations are dispatcher ops. DDP's reducer, FSDP, DTensor, functional collectives in compiled code,
pipelines and ZeRO all pass a Python kernel at the key BackendSelect. Patching torch.distributed's functions
would miss most of them. The Autograd key would miss inference mode.
"""

import dataclasses
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from time import time_ns
from typing import Any

import torch
import torch.distributed as dist

from overlaptop.agent import placement
from overlaptop.agent.hooks.waits import WaitHooks, is_traced
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.isolation.patching import replace, transparent, uncompiled
from overlaptop.agent.sources.base import CollectiveCall, Wait, only
from overlaptop.agent.sources.hooked_source import HookedSource
from overlaptop.timeline.collectives import group_title, link_bytes, sum_links_where_known
from overlaptop.wire.messages import MAX_LAST_CALLS, MAX_LAST_GROUPS, IssuedCall

KEY = "BackendSelect"
MAX_COALESCED = 4096
MAX_GROUPS = 1024  # Groups whose location (on this node or not) is remembered
POINT_TO_POINT = ("send", "recv_", "recv_any_source_")
LISTS_COALESCED_WHEN_UNEVEN = ("allgather_", "reduce_scatter_")
"""Ops on lists of tensors. If sizes differ, NCCL runs one broadcast or reduce per tensor."""


class CollectiveHooks:
    """Calls the source at each collective that is issued and each wait for one."""

    def __init__(self, barrier: FaultBarrier, source: Callable[[], HookedSource | None]) -> None:
        """``source()`` is called each time; it returns None before the first step boundary."""
        self.issued = IssuedCalls()
        self._source = source
        self._waits = WaitHooks(barrier, source)
        self._library: Any = None
        self._functional: Any = None
        self._issue = barrier.guarded("the collective hook, before", self._before)
        self._issued = barrier.guarded("the collective hook, after", self._after)
        self._failed = barrier.guarded("the collective hook, on failure", self._on_failure)
        self._mixed_begin = barrier.guarded("the end-of-backward hook", self._before_mixed)
        self._coalescing_begin = barrier.guarded("the coalescing hook, begin", self._begin_coalescing)
        self._coalescing_end = barrier.guarded("the coalescing hook, end", self._end_coalescing)
        self._bracketed_task = -1
        self._groups = _Groups()
        self._coalescing: dict[str, list[CollectiveCall]] = {}

    def install(self) -> None:
        key = getattr(torch._C.DispatchKey, KEY)  # noqa: SLF001 - torch has no public way
        after = torch._C._dispatch_keyset_full_after(key)  # noqa: SLF001
        self._library = torch.library.Library("c10d", "IMPL")
        for name in _c10d_ops():
            op = getattr(torch.ops.c10d, name).default
            if any(argument.name == "process_group" for argument in op._schema.arguments):  # noqa: SLF001
                self._library.impl(name, self._kernel(op, after), KEY, with_keyset=True)
        self._functional = torch.library.Library("_c10d_functional", "IMPL")
        wait_tensor = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001
        self._functional.impl("wait_tensor", self._wait_kernel(wait_tensor, after), KEY, with_keyset=True)
        self._patch_coalescing()
        self._waits.install()
        self._groups.begin(list(dist.distributed_c10d._world.pg_map))  # noqa: SLF001 - there is no public way

    def last_calls(self) -> dict[str, tuple[IssuedCall, ...]]:
        """Return the last collectives of each group by its title, oldest first. On the agent's thread.

        Torch numbers them: the newest has the group's current number, each earlier one a number less.
        """
        found: dict[str, tuple[IssuedCall, ...]] = {}
        for group in list(dist.distributed_c10d._world.pg_map):  # noqa: SLF001 - there is no public way
            for kind in ("cpu", "cuda"):
                calls = self.issued.last(group.group_name, kind)
                backend = _backend_of(group, torch.device(kind)) if calls else None
                if (number := self._groups.next_number(group, backend)) is not None:
                    first = number - len(calls)
                    found[_group_name(group)] = tuple(
                        IssuedCall(op, size_bytes, max(first + at, 0), at_ns)
                        for at, (op, size_bytes, at_ns) in enumerate(calls)
                    )
        return found

    def _kernel(self, op: Any, after: Any) -> Callable[..., Any]:
        describe = _Describe(op, self._groups)
        issue, issued, failed = self._issue, self._issued, self._failed
        redispatch = op._handle.redispatch_boxed  # noqa: SLF001 - op.redispatch is Python, and may be compiled

        def kernel(keys: Any, *args: Any) -> Any:
            token = issue(describe, args)
            try:
                out = redispatch(keys & after, *args)
            except BaseException:
                if token is not None:
                    failed(token)
                raise
            if token is not None:
                issued(token, out)
            return out

        return transparent(kernel)

    def _wait_kernel(self, op: Any, after: Any) -> Callable[..., Any]:
        begin, end = self._waits.begin, self._waits.end
        redispatch = op._handle.redispatch_boxed  # noqa: SLF001 - as above

        def kernel(keys: Any, *args: Any) -> Any:
            token = None if is_traced(args[0]) else begin(None)
            try:
                return redispatch(keys & after, *args)
            finally:
                if token is not None:
                    end(token, Wait.PURE)

        return transparent(kernel)

    def _before(self, describe: "_Describe", args: tuple[Any, ...]) -> Any:
        if describe.point_to_point:
            describe.count(args)
        source = self._source()
        if source is None:
            return None
        if self._coalescing and self._held_back(describe(args)):
            return None
        self.issued.note(*describe.in_brief(args))
        token = source.issue(partial(describe, args))
        if token is None:
            return None
        self._bracket_end_of_backward()
        return source, token

    def _held_back(self, call: CollectiveCall | None) -> bool:
        """Whether the call is launched later, at the end of its group's coalescing."""
        calls = self._coalescing.get(call.group) if call is not None else None
        if call is None or calls is None:
            return False
        calls.append(call)
        if len(calls) > MAX_COALESCED:
            del self._coalescing[call.group]  # it raised, so it will never end
        return True

    def _after(self, token: tuple[HookedSource, Any], out: Any) -> None:
        source, collective = token
        source.issued(collective, _work_of(out))

    def _on_failure(self, token: tuple[HookedSource, Any]) -> None:
        source, collective = token
        source.failed(collective)

    def _bracket_end_of_backward(self) -> None:
        """Bracket DDP's wait for its all-reduces, a C++ callback at the end of backward.

        Callbacks run in the order of queueing. Ours is queued at the first collective of the backward, so
        it runs before DDP's. It then queues a second one, which runs after DDP's.
        """
        task = torch._C._current_graph_task_id()  # noqa: SLF001
        if task in (-1, self._bracketed_task):
            return
        self._bracketed_task = task
        _queue_callback(self._mixed_begin)

    def _before_mixed(self) -> None:
        token = self._waits.begin(None)
        if token is not None:
            _queue_callback(uncompiled(lambda: self._waits.end(token, Wait.MIXED)))

    def _patch_coalescing(self) -> None:
        """Coalesced operations launch together when the group's coalescing ends; no op marks that."""

        def started(start: Callable[..., Any]) -> Callable[..., Any]:
            def start_coalescing(group: Any, *args: Any, **kwargs: Any) -> Any:
                out = start(group, *args, **kwargs)
                self._coalescing_begin(group)
                return out

            return start_coalescing

        def ended(end: Callable[..., Any]) -> Callable[..., Any]:
            def end_coalescing(group: Any, *args: Any, **kwargs: Any) -> Any:
                token = self._coalescing_end(group)
                try:
                    work = end(group, *args, **kwargs)
                except BaseException:
                    if token is not None:
                        self._failed(token)
                    raise
                if token is not None:
                    self._issued(token, work)
                return work

            return end_coalescing

        replace(dist.ProcessGroup, "_start_coalescing", started)
        replace(dist.ProcessGroup, "_end_coalescing", ended)

    def _begin_coalescing(self, group: Any) -> None:
        self._coalescing[_group_name(group)] = []

    def _end_coalescing(self, group: Any) -> Any:
        source = self._source()
        calls = self._coalescing.pop(_group_name(group), [])
        if source is None or not calls:
            return None
        together = _together(calls)
        self.issued.note(group.group_name, together.device_type, together.op, together.bytes)
        token = source.issue(partial(_together, calls))
        return None if token is None else (source, token)


class IssuedCalls:
    """The last calls in each group: one of them may hang. `note` runs on the job's threads."""

    def __init__(self) -> None:
        self.count = 0  # Collectives and point-to-point operations issued so far
        self._last: dict[tuple[str, str], deque[tuple[str, int | None, int]]] = {}

    def note(self, group: str, device_type: str, op: str, size_bytes: int | None) -> None:
        """Note a call that is about to be issued; ``op`` is empty if the group does not number it."""
        self.count += 1
        if not op:
            return
        calls = self._last.get((group, device_type))
        if calls is None:
            if len(self._last) >= MAX_LAST_GROUPS:
                return
            calls = self._last[group, device_type] = deque(maxlen=MAX_LAST_CALLS)
        calls.append((op, size_bytes, time_ns()))

    def last(self, group: str, device_type: str) -> tuple[tuple[str, int | None, int], ...]:
        """Return operation, bytes and Unix time in ns of the last calls, oldest first."""
        return tuple(self._last.get((group, device_type), ()))


class _Groups:
    """Finds the ranks and nodes of groups, and numbers their collectives, alike on all ranks of a group.

    Torch counts collectives itself, so none is missed in unmeasured steps. But gloo also counts sends and
    receives, which only some ranks make. These are counted here and subtracted, as are all calls from
    before the hooks.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, int], int | None] = {}
        self._taken_off: Counter[str] = Counter()  # By the name of a gloo group

    def size(self, title: str, group: Any) -> tuple[int | None, int]:
        """Return the group's ranks and nodes, as for `link_bytes`."""
        size = int(group.size())
        if (title, size) not in self._nodes:
            if len(self._nodes) >= MAX_GROUPS:
                self._nodes.clear()
            ranks = dist.get_process_group_ranks
            nodes = 1 if size == 1 else _if_known(lambda: placement.node_count(ranks(group)))
            self._nodes[title, size] = nodes
        nodes = self._nodes[title, size]
        return (None, 1) if nodes is None else (size, nodes)

    def begin(self, groups: Iterable[Any]) -> None:
        """Called as the hooks go in: at the same point of the script on all ranks, between two steps."""
        for group in groups:
            backend = _backend_of(group, torch.device("cpu"))
            if backend is not None and backend.name() == "gloo":
                self._taken_off[group.group_name] = _begun(backend) or 0

    def count_point_to_point(self, group: Any) -> None:
        self._taken_off[group.group_name] += 1

    def next_number(self, group: Any, backend: Any) -> int | None:
        """Return the number of the next collective; None if torch does not count."""
        begun = None if backend is None else _begun(backend)
        if begun is None:
            return None
        # From 1, as NCCL's flight recorder numbers them.
        return 1 + begun - (self._taken_off[group.group_name] if backend.name() == "gloo" else 0)


def _begun(backend: Any) -> int | None:
    try:
        return int(backend._get_sequence_number_for_group())  # noqa: SLF001 - there is no public way
    except (AttributeError, RuntimeError) as fault:
        if raised_by_job(fault):
            raise
        return None


class _Describe:
    """Reads an op's arguments: tensors in and out, group, async flag, peer."""

    def __init__(self, op: Any, groups: _Groups) -> None:
        arguments = op._schema.arguments  # noqa: SLF001
        names = [argument.name for argument in arguments]
        self._name = op._schema.name.removeprefix("c10d::")  # noqa: SLF001
        self._group_at = names.index("process_group")
        self._async_at = names.index("async_op") if "async_op" in names else None
        self._peer_at = next((names.index(name) for name in ("dst", "src") if name in names), None)
        tensors = [i for i, argument in enumerate(arguments) if "Tensor" in str(argument.type)]
        self._out_at = [i for i in tensors if names[i].startswith("output")]
        self._in_at = [i for i in tensors if i not in self._out_at]
        self._groups = groups
        self.point_to_point = self._name in POINT_TO_POINT

    def count(self, args: tuple[Any, ...]) -> None:
        if not any(map(is_traced, itertools.chain(*self._sides(args)))):
            self._groups.count_point_to_point(dist.ProcessGroup.unbox(args[self._group_at]))

    def __call__(self, args: tuple[Any, ...]) -> CollectiveCall | None:
        """Describe one call; None for fake and meta tensors, which a compiler traces with."""
        sides = self._sides(args)
        first = next(iter(sides[0] or sides[1]), None)
        if first is not None and is_traced(first):
            return None
        group = dist.ProcessGroup.unbox(args[self._group_at])
        at = self._async_at
        size_bytes = _size_bytes(sides)
        title = _group_name(group)
        device = first.device if first is not None else torch.device("cpu")
        backend = _backend_of(group, device)
        peer = None if self._peer_at is None else int(args[self._peer_at])
        other = None if peer is None else _if_known(lambda: dist.get_global_rank(group, peer))
        return CollectiveCall(
            op=self._name,
            bytes=size_bytes,
            group=title,
            # The dispatcher strips trailing arguments that have their default, which is True.
            is_async=True if at is None or len(args) <= at else bool(args[at]),
            backend=str(backend.name()) if backend is not None else "unknown",
            device_type=device.type,
            device_index=device.index if device.index is not None else -1,
            peer=peer,
            coalesced=self._name in LISTS_COALESCED_WHEN_UNEVEN and not _are_even(sides),
            link=link_bytes(self._name, size_bytes, *self._groups.size(title, group)),
            sequence=None if self.point_to_point else self._groups.next_number(group, backend),
            sends_to=other if self._name == "send" else None,
            receives_from=other if self._name == "recv_" else None,
        )

    def in_brief(self, args: tuple[Any, ...]) -> tuple[str, str, str, int]:
        """Return group name, device type, operation and bytes, in a tenth of a full description's time.

        Hang reports use it. The operation is empty if the call does not count. It runs for each collective,
        so it makes no lists of tensors.
        """
        most, first = 0, None
        for positions in (self._in_at, self._out_at):
            size_bytes = 0
            for i in positions:
                given = args[i] if i < len(args) else ()
                if type(given) is list and len(given) == 1:
                    given = given[0]
                for t in (given,) if isinstance(given, torch.Tensor) else _tensors(given):
                    first = t if first is None else first
                    size_bytes += t.numel() * t.itemsize
            most = max(most, size_bytes)
        counts = not self.point_to_point and (first is None or not is_traced(first))
        return (
            dist.ProcessGroup.unbox(args[self._group_at]).group_name,
            "cpu" if first is None or first.is_cpu else first.device.type,
            self._name if counts else "",
            most,
        )

    def _sides(self, args: tuple[Any, ...]) -> "_Sides":
        """Return the tensors that are given and that are written. Trailing arguments may be missing."""
        return (
            [tensor for i in self._in_at if i < len(args) for tensor in _tensors(args[i])],
            [tensor for i in self._out_at if i < len(args) for tensor in _tensors(args[i])],
        )


_Sides = tuple[list[torch.Tensor], list[torch.Tensor]]


def _c10d_ops() -> list[str]:
    names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001
    return sorted(name.removeprefix("c10d::") for name in names if name.startswith("c10d::"))


def _tensors(argument: Any) -> list[torch.Tensor]:
    """Flatten a Tensor, Tensor[] or Tensor[][]."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [tensor for each in argument for tensor in _tensors(each)]
    return []


def _size_bytes(sides: _Sides) -> int:
    """Return the bytes of the larger side."""
    return max(sum(t.numel() * t.itemsize for t in side) for side in sides)


def _are_even(sides: _Sides) -> bool:
    return all(len({t.numel() for t in side}) <= 1 for side in sides)


def _backend_of(group: Any, device: torch.device) -> Any:
    try:
        return group._get_backend(device)  # noqa: SLF001
    except RuntimeError as fault:  # no backend for this device: the call itself will raise the same
        if raised_by_job(fault):
            raise
        return None


def _group_name(group: Any) -> str:
    return group_title(group.group_name, group.group_desc)


def _if_known(ask: Callable[[], int | None]) -> int | None:
    try:
        return ask()
    except (KeyError, ValueError) as fault:  # torch.distributed does not know the group or rank
        if raised_by_job(fault):
            raise
        return None


def _queue_callback(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # noqa: SLF001


def _together(calls: list[CollectiveCall]) -> CollectiveCall:
    first = calls[0]
    return dataclasses.replace(
        first,
        op=f"coalesced {'+'.join(sorted({call.op for call in calls}))}",
        bytes=sum(call.bytes or 0 for call in calls),
        peer=None,
        coalesced=True,
        link=sum_links_where_known(call.link for call in calls),
        sends_to=only(call.sends_to for call in calls),
        receives_from=only(call.receives_from for call in calls),
    )


def _work_of(out: Any) -> Any:
    """The Work in what an op returned; None for calls that ran on the current stream."""
    boxed = out[-1] if isinstance(out, tuple) else out
    if boxed is None or isinstance(boxed, dist.Work):
        return boxed
    return dist.Work.unbox(boxed)
