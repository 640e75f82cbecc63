"""Changes the bucket size of the job's DistributedDataParallel model while it trains.

DDP splits its gradients into buckets when it makes its reducer. So this makes a new reducer as DDP does: at
the agreed step, just before the first forward pass whose gradients are reduced. There the old reducer has
finished and the new one has not begun, even if gradients accumulate over several backward passes or the
script looks one batch ahead. As in a job's first two steps, the new reducer learns the order of gradients
in one step and makes the buckets of the requested size in the next. Rank 0 sends the others its assignment.
"""

import dataclasses
import sys
import weakref
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from overlaptop.agent.control.action import KnobProvider, Outcome, SettingAction, brief
from overlaptop.agent.control.two_phase_commit import Position
from overlaptop.agent.hooks.process_groups import why_uncounted
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.job_exceptions import raised_by_job, run_to_completion
from overlaptop.agent.isolation.patching import note_calls, own_handle_numbers
from overlaptop.timeline.collectives import group_title
from overlaptop.wire.knobs import BUCKET_CAP_MB, MAX_GRADIENTS, GradientFacts, Knob

MIB = 1 << 20
NO_FORWARD_STEPS = 16
"""After this many steps without a forward pass that reduces, the change is given up, on all ranks alike."""

_NEEDS = (
    "_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_ddp_init_helper", "_comm_hooks",
    "_has_rebuilt_buckets", "_join_config.enable", "_module_parameters", "bucket_bytes_cap",
    "bucket_bytes_cap_default", "find_unused_parameters", "logger", "require_backward_grad_sync",
    "static_graph", "reducer._check_reducer_finalized", "reducer._remove_autograd_hooks",
    "reducer._set_static_graph",
)  # fmt: skip
"""Attributes of DistributedDataParallel that are used here, and may be missing in another torch."""

_COMPILED = "its model is compiled, and compiled code keeps its buckets"
_EXCLUDED = {
    "_compiled_call_impl": _COMPILED,
    "_use_python_reducer": "its model reduces in compiled code (optimize_ddp is python_reducer)",
    "_delay_all_reduce_params": "its model delays reductions (delay_all_reduce_named_params)",
    "mixed_precision": "its model has DDP's mixed_precision",
    "bucket_bytes_cap_list": "its model has a list of bucket sizes (bucket_cap_mb_list)",
}
"""Why a model with this attribute cannot be changed: a new reducer would not be like the first one."""
_GONE = "the DistributedDataParallel model is gone"


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """A model's bucket size, as torch stores it."""

    bytes_cap: int
    by_default: bool  # True if the script named no size: torch then makes the first bucket smaller
    config: Any  # torch's own record of the sizes since 2.13; None before

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

    def with_size(self, size_bytes: int) -> "BucketCaps":
        config = self.config
        if config is not None:
            sizes = {"bucket_bytes_cap": size_bytes, "first_bucket_bytes_cap": size_bytes}
            config = dataclasses.replace(config, **sizes, per_bucket_bytes_caps=())
        return BucketCaps(size_bytes, by_default=False, config=config)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that the script made."""

    model: weakref.ref[Any]
    trained: tuple[weakref.ref[Any], ...]  # The parameters at the time the reducer was made
    made_with: BucketCaps


class RebucketAction(SettingAction):
    """One rank's part in changing the bucket size of the job's DDP model.

    `abandon` undoes nothing: an agreed change must happen on all ranks, or they would wait for each other
    forever. In a job that ends, no forward pass comes.
    """

    def __init__(
        self, knob: "BucketKnob", known: KnownModel, caps: BucketCaps, undone: "RebucketAction | None"
    ) -> None:
        """``undone``: the change that this one undoes, on the same model even if there are others now."""
        self._knob = knob
        self._known = known
        self._caps = caps
        self._undone = undone
        self._before = caps
        self._since: int | None = None
        self._watch: Any = None
        self._swapped = False
        self._fault = ""

    def refusal(self) -> str:
        only = self._knob.only()
        if self._undone is None and only is not self._known:
            return only if isinstance(only, str) else _GONE
        return self._knob.objection(self._known)

    def position(self, step: int) -> Position:
        """All ranks must act between the same two reductions, with the same buckets before."""
        return self._knob.position(step, f"buckets of {BucketCaps.of(self._known.model()).bytes_cap} bytes")

    def boundary(self, step: int) -> bool:
        """From the agreed step on wait for the forward pass, and after it for the new buckets.

        Raises RuntimeError if the model has changed meanwhile, on all ranks alike.
        """
        model = self._known.model()
        if model is None:
            self._forget()
            raise RuntimeError(_GONE)
        if self._since is None:
            more = self._begin(model, step)  # again from its beginning if the job's exception interrupts it
            self._since = step
            return more
        if not self._swapped:
            if self._undone is not None:
                self._since = step  # an undo never gives up
            if step < self._since + NO_FORWARD_STEPS:
                return True
            self._forget()
            raise RuntimeError(
                f"in {NO_FORWARD_STEPS} steps the model made no forward pass whose gradients it reduces"
            )
        rebuilds = model.static_graph or not model.find_unused_parameters
        if not rebuilds or model._has_rebuilt_buckets:
            return False
        if step >= self._since + 2 * NO_FORWARD_STEPS:
            self._fault = "DistributedDataParallel did not rebuild its buckets"
            return False
        return True

    def undoing(self) -> "RebucketAction":
        return RebucketAction(self._knob, self._known, self._before, self)

    def finish(self) -> Outcome:
        if self._fault:
            raise RuntimeError(self._fault)
        return super().finish()

    def _begin(self, model: Any, step: int) -> bool:
        # Conditions that may have arisen since; each arises on all ranks in the same step.
        if why := self.refusal():
            raise RuntimeError(why)
        self._before = old = BucketCaps.of(model)
        self.changes(BUCKET_CAP_MB, old.mb, self._caps.mb, step)
        # All ranks make the new reducer of an undo, as the change may have failed on some.
        if old == self._caps and not (self._undone is not None and self._undone._swapped):
            return False
        self._forget()
        with own_handle_numbers():
            self._watch = model.register_forward_pre_hook(self._before_forward)
        return True

    def _before_forward(self, model: Any, _inputs: Any) -> None:
        """Before each forward pass from the agreed step on, until the first whose gradients are reduced.

        Raises only if the model is left without a reducer, so that it could not train on.
        """
        import torch

        reduces = torch.is_grad_enabled() and model.require_backward_grad_sync
        captures = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        if self._swapped or not reduces or captures:
            return
        try:
            model.reducer._check_reducer_finalized()
        except RuntimeError as fault:
            if raised_by_job(fault):
                raise
            return  # an earlier backward pass was interrupted, which DDP is about to report itself
        run_to_completion(partial(self._swap, model))

    def _swap(self, model: Any) -> None:
        self._forget()
        self._swapped = True
        if model.reducer is not None:
            model.reducer._remove_autograd_hooks()  # otherwise it would reduce along with the new one
        try:
            _make_reducer(model, self._caps)
        except Exception as fault:  # the job must not see it
            if raised_by_job(fault):
                raise
            self._fault = brief(fault)
            _make_reducer(model, self._before)
            self._fault += f"; the buckets are of {self._before.mb} MiB again"

    def _forget(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.remove()


def _make_reducer(model: Any, caps: BucketCaps) -> None:
    import torch.distributed as dist

    # Free the old buckets first: both together may exceed the device's memory.
    model.reducer = model.logger = None
    model.bucket_bytes_cap, model.bucket_bytes_cap_default = caps.bytes_cap, caps.by_default
    if caps.config is not None:
        model._bucket_config = caps.config
    parameters, sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, sparse, names, model.static_graph)
    model._has_rebuilt_buckets = False
    if model.static_graph:
        model._static_graph_delay_allreduce_enqueued = False  # else nothing would be reduced
        model.reducer._set_static_graph()
        model.logger._set_static_graph()
    for hook, state in model._comm_hooks:
        model.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(model.reducer, state, hook)  # type: ignore[attr-defined]  # no stub has it


LEAST_MB = 1
MOST_MB = 10_000
FIRST_CAP_BYTES = MIB
"""Size of the first bucket if the script names none: torch's own, unchanged since torch has one."""

FLAGS = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph")
"""Constructor arguments that a model remembers; the last fields of GradientFacts."""


class BucketKnob(KnobProvider):
    """Reports the bucket size and the gradients in the buckets, of models noted by weak references.

    Models are noted on the job's threads when the script makes them, so nothing has to search for them. Two
    facts that torch does not record are noted, too: which were compiled, and which reduce by a hook in C++.
    """

    def __init__(self, barrier: FaultBarrier) -> None:
        super().__init__()
        self._barrier = barrier
        self._known: tuple[KnownModel, ...] = ()
        self._compiled: weakref.WeakSet[Any] = weakref.WeakSet()  # Models that torch.compile has seen
        self._hooked_in_cpp: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models that reduce by one of torch's C++ hooks, which cannot be read back."""
        self._watches_compiler = False
        self._gradients: tuple[KnownModel, GradientFacts] | None = None

    def install(self) -> None:
        """Note each model from now on. Lasts until the process ends."""
        import torch.distributed as dist

        if not dist.is_available():
            return
        from torch.nn.parallel import DistributedDataParallel

        guarded = self._barrier.guarded
        note = guarded("noting a DDP model", self._note)
        note_hook = guarded("noting a DDP hook", lambda model, *_: self._hooked_in_cpp.add(model))
        # Wrap the function that makes reducers, not __init__: torch's warnings name __init__'s caller.
        note_calls(DistributedDataParallel, "_ddp_init_helper", note, after=True)
        note_calls(DistributedDataParallel, "_register_builtin_comm_hook", note_hook)
        self._watch_ddp_optimizer(DistributedDataParallel)

    def only(self) -> KnownModel | str:
        """Return the job's only model, or why there is not exactly one."""
        alive = self._alive()
        if len(alive) == 1:
            return alive[0]
        if alive:
            return f"the job has {len(alive)} DistributedDataParallel models, and only one could be meant"
        return "the job has made no DistributedDataParallel model since the agent was there"

    def objection(self, known: KnownModel) -> str:
        """Why this model's buckets cannot be changed; empty: they can."""
        try:
            return self._objection(known, known.model())
        except Exception as fault:  # a different torch, or a model that is being changed
            if raised_by_job(fault):
                raise
            return f"its DistributedDataParallel model is not as expected: {type(fault).__name__}: {fault}"

    def _objection(self, known: KnownModel, model: Any) -> str:
        if model is None:
            return _GONE
        if model.reducer is None:
            return "its buckets are being made anew just now"
        if excluded := next((why for name, why in _EXCLUDED.items() if getattr(model, name, None)), ""):
            return excluded
        attrgetter(*_NEEDS)(model)  # raises AttributeError
        if model in self._compiled:
            return _COMPILED
        if model in self._hooked_in_cpp:
            return "its model has a communication hook in C++, which could not be given to new buckets"
        if any(type(state).__name__ == "PowerSGDState" for _, state in model._comm_hooks):
            return "its communication hook keeps state for each bucket (PowerSGDState)"
        if any(hasattr(parameter, "_in_backward_optimizers") for parameter in model._module_parameters):
            return "its optimizers run in backward"
        if model._join_config.enable:  # torch records no end of a join
            return "its model trains with join(), where ranks may stop at different steps"
        trained = [parameter for parameter in model._module_parameters if parameter.requires_grad]
        noted = [parameter() for parameter in known.trained]
        if list(map(id, trained)) != list(map(id, noted)):
            return "other parameters are trained now than when the DistributedDataParallel model was made"
        return why_uncounted(model.process_group)

    def _alive(self) -> list[KnownModel]:
        return [known for known in self._known if known.model() is not None]

    def _note(self, model: Any, *_: Any) -> None:
        alive = self._alive()
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
        ask = ddp._get_active_ddp_module
        note = self._barrier.guarded("noting a compiled model", self._compiled.add)

        def noted_ask(_cls: Any) -> Any:
            model = ask()
            if model is not None:
                note(model)
            return model

        ddp._get_active_ddp_module = classmethod(noted_ask)

    def _watch_compile(self) -> None:
        """Note models that torch.compile(model) wraps: the model itself does not know its wrapper.

        torch has loaded its compiler by the time it has made a DDP model.
        """
        compiler = sys.modules.get("torch._dynamo.eval_frame")
        wrapper = getattr(compiler, "OptimizedModule", None)
        if self._watches_compiler or wrapper is None:
            return
        self._watches_compiler = True
        note = self._barrier.guarded("noting a compiled model", self._compiled.add)
        note_calls(wrapper, "__init__", lambda _, model, *__: note(model))

    def knobs(self) -> tuple[Knob, ...]:
        """Return one knob if the job has DDP models; it refuses changes if there are several."""
        if not self._alive():
            return ()
        known = self.only()
        value: int | None = None
        value_text = original_text = ""
        refusal = known if isinstance(known, str) else self.objection(known)
        if not isinstance(known, str) and (model := known.model()) is not None:
            caps = BucketCaps.of(model)
            value = None if caps.bytes_cap % MIB else caps.bytes_cap // MIB
            value_text, original_text = caps.mb, known.made_with.mb
        return (
            Knob(
                BUCKET_CAP_MB, value, value_text, original_text, LEAST_MB, MOST_MB, unit="MiB",
                owner="DistributedDataParallel", refusal=refusal,
                about="how many gradients are reduced together: large buckets use the link better, "
                "small ones begin earlier",
                code="DistributedDataParallel(model, bucket_cap_mb={value})",
            ),
        )  # fmt: skip

    def action(self, knob: str, value: int | None) -> RebucketAction:
        """As KnobProvider says. The size the model was made with is restored exactly."""
        del knob
        known = self.only()
        if isinstance(known, str):
            raise ValueError(known)
        made_with, size_bytes = known.made_with, None if value is None else value * MIB
        if size_bytes in (None, made_with.bytes_cap):
            return RebucketAction(self, known, made_with, None)
        return RebucketAction(self, known, BucketCaps.of(known.model()).with_size(size_bytes), None)

    def group(self) -> Any:
        known = self.only()
        model = None if isinstance(known, str) else known.model()
        return None if model is None else model.process_group

    def gradients(self, rank: int) -> GradientFacts | None:
        """Return the gradients of the only model; None without exactly one.

        The same object is returned for the same model.
        """
        known = self.only()
        if isinstance(known, str):
            return None
        if self._gradients is not None and self._gradients[0] is known:
            return self._gradients[1]
        model = known.model()
        parameters = [noted() for noted in reversed(known.trained)]
        if model is None or any(parameter is None for parameter in parameters):
            return None
        group = model.process_group
        sizes = tuple(parameter.numel() * parameter.element_size() for parameter in parameters)
        facts = GradientFacts(
            rank,
            sizes if len(sizes) <= MAX_GRADIENTS else (),
            group.size(),
            group_title(group.group_name, group.group_desc),
            FIRST_CAP_BYTES if known.made_with.by_default else None,
            *(getattr(model, name, None) for name in FLAGS),
        )
        self._gradients = known, facts
        return facts
