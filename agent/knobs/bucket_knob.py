"""The knob of the job's DistributedDataParallel model: how large its buckets are."""

from __future__ import annotations

from overlaptop.agent.knobs.change_bucket_size import RebucketAction
from overlaptop.agent.knobs.ddp_models import MIB, BucketCaps, DdpModels, KnownModel
from overlaptop.timeline.collectives import group_title
from overlaptop.wire.knobs import BUCKET_CAP_MB, MAX_GRADIENTS, GradientFacts, Knob

LEAST_MB = 1
MOST_MB = 10_000
FIRST_CAP_BYTES = MIB
"""Of the first bucket where the script names no size: torch's own, the same since it has had one."""

FLAGS = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph")
"""What a model remembers of how it was made, as the last fields of GradientFacts."""


class BucketKnob:
    """Tells of the bucket size and of the gradients that fill the buckets. See registry.KnobProvider."""

    def __init__(self, models: DdpModels) -> None:
        self._models = models
        self._gradients: tuple[KnownModel, GradientFacts] | None = None
        """The newest answer, and the model that it is about."""

    def knobs(self) -> tuple[Knob, ...]:
        """One where the job has such a model; one that refuses where it has several."""
        if not self._models.alive():
            return ()
        known = self._models.only()
        value: int | None = None
        value_text = original_text = ""
        model = None if isinstance(known, str) else known.model()
        if model is not None and not isinstance(known, str):
            caps = BucketCaps.of(model)
            value = None if caps.bytes_cap % MIB else caps.bytes_cap // MIB
            value_text, original_text = caps.mb, known.made_with.mb
        return (
            Knob(
                BUCKET_CAP_MB,
                value,
                value_text,
                original_text,
                LEAST_MB,
                MOST_MB,
                unit="MiB",
                owner="DistributedDataParallel",
                about="how many gradients are reduced together: large buckets use the link better, "
                "small ones begin earlier",
                code="DistributedDataParallel(model, bucket_cap_mb={value})",
                refusal=RebucketAction(None, self._models).refusal(),
            ),
        )

    def action(self, knob: str, value: int | None) -> RebucketAction:
        """What makes buckets of this size; None: as the model was made with."""
        del knob
        return RebucketAction(None if value is None else value * MIB, self._models)

    def note_step(self, step: int) -> None:
        """See registry.KnobProvider."""
        self._models.note_step(step)

    def gradients(self, rank: int) -> GradientFacts | None:
        """Those of the one model that there is, the same object while it is the same model; else None."""
        known = self._models.only()
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
