"""Tracks the job's DistributedDataParallel models by weak references.

Models are noted when the script makes them, so nothing has to search for them. Two facts that torch does
not record are noted, too: which models were compiled, and which reduce by a hook in C++.
"""

import sys
import weakref
from dataclasses import dataclass
from typing import Any

from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.patching import note_calls

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """A model's bucket size, as torch stores it."""

    bytes_cap: int
    by_default: bool
    """True if the script named no size: torch then makes the first bucket smaller."""
    config: Any
    """torch's own record of the sizes since 2.13; None before."""

    @classmethod
    def of(cls, model: Any) -> "BucketCaps":
        """Read a model's present sizes; attributes that this torch lacks get defaults."""
        return cls(
            getattr(model, "bucket_bytes_cap", 0),
            getattr(model, "bucket_bytes_cap_default", False),
            getattr(model, "_bucket_config", None),
        )

    @property
    def mb(self) -> str:
        """The size in MiB, as in DistributedDataParallel's bucket_cap_mb: ``25``."""
        return f"{self.bytes_cap / MIB:g}"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that the script made."""

    model: weakref.ref[Any]
    trained: tuple[weakref.ref[Any], ...]
    """The parameters at the time the reducer was made."""
    made_with: BucketCaps


class DdpModels:
    """The models of this process. Noted on the job's threads, read on any."""

    def __init__(self, barrier: FaultBarrier) -> None:
        self._barrier = barrier
        self._known: tuple[KnownModel, ...] = ()
        self.compiled: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models that torch.compile has seen: compiled code keeps the buckets it was made for."""
        self.hooked_in_cpp: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models that reduce by one of torch's C++ hooks, which cannot be read back."""
        self._watches_compiler = False

    def install(self) -> None:
        """Note each model from now on. Lasts until the process ends."""
        import torch.distributed as dist

        if not dist.is_available():
            return
        from torch.nn.parallel import DistributedDataParallel

        guarded = self._barrier.guarded
        note = guarded("noting a DDP model", self._note)
        note_hook = guarded("noting a DDP hook", lambda model, *_: self.hooked_in_cpp.add(model))
        # Wrap the function that makes reducers, not __init__: torch's warnings name __init__'s caller.
        note_calls(DistributedDataParallel, "_ddp_init_helper", note, after=True)
        note_calls(DistributedDataParallel, "_register_builtin_comm_hook", note_hook)
        self._watch_ddp_optimizer(DistributedDataParallel)

    def alive(self) -> list[KnownModel]:
        return [known for known in self._known if known.model() is not None]

    def only(self) -> KnownModel | str:
        """Return the job's only model, or why there is not exactly one."""
        alive = self.alive()
        if len(alive) == 1:
            return alive[0]
        if alive:
            return f"the job has {len(alive)} DistributedDataParallel models, and only one could be meant"
        return "the job has made no DistributedDataParallel model since the agent was there"

    def _note(self, model: Any, *_: Any) -> None:
        alive = self.alive()
        if any(known.model() is model for known in alive):
            return  # the reducer of a known model was made again
        parameters = getattr(model, "_module_parameters", ())
        known = KnownModel(
            weakref.ref(model),
            tuple(weakref.ref(parameter) for parameter in parameters if parameter.requires_grad),
            BucketCaps.of(model),
        )
        self._known = (*alive, known)
        self._watch_compile()

    def _watch_ddp_optimizer(self, ddp: Any) -> None:
        """Compilers ask for the model whose forward they compile a part of; note it."""
        if not hasattr(ddp, "_get_active_ddp_module"):
            return
        ask = ddp._get_active_ddp_module  # noqa: SLF001 - there is no public way
        note = self._barrier.guarded("noting a compiled model", self.compiled.add)

        def noted_ask(_cls: Any) -> Any:
            model = ask()
            if model is not None:
                note(model)
            return model

        ddp._get_active_ddp_module = classmethod(noted_ask)  # noqa: SLF001

    def _watch_compile(self) -> None:
        """Note models that torch.compile(model) wraps: the model itself does not know its wrapper.

        torch has loaded its compiler by the time it has made a DDP model.
        """
        compiler = sys.modules.get("torch._dynamo.eval_frame")
        wrapper = getattr(compiler, "OptimizedModule", None)
        if self._watches_compiler or wrapper is None:
            return
        self._watches_compiler = True
        note = self._barrier.guarded("noting a compiled model", self.compiled.add)
        note_calls(wrapper, "__init__", lambda _, model, *__: note(model))
