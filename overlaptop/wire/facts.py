"""What a rank sends of itself whenever it changes: of each kind only the newest counts."""

from __future__ import annotations

from overlaptop.wire.devices import DeviceFacts, MachineFacts, NumaFacts
from overlaptop.wire.knobs import GradientFacts, KnobFacts
from overlaptop.wire.messages import EnvironmentFacts, OwnCost, Standstill

Facts = (
    MachineFacts
    | DeviceFacts
    | NumaFacts
    | KnobFacts
    | GradientFacts
    | OwnCost
    | Standstill
    | EnvironmentFacts
)
