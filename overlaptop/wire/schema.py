"""What messages are made of. Each is declared once; packing, checking and compatibility follow from that.

A message is a class with a tag and fields; the type of a field says what it may be (bounds.py). On the wire
it is one msgpack array: the tag, then the fields in their order. A tag keeps its meaning for ever. New
fields go to the end and have a default, so either side may be the newer one: what an older peer does not
know it ignores, what it does not send takes its default. Any other change raises PROTOCOL_VERSION.
"""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, array_like=True):
    """An array of fields inside a message."""

    def inconsistency(self) -> str:
        """What is wrong with fields that are each right by themselves, in a line; empty: nothing."""
        return ""


class Message(Part, frozen=True):
    """What travels by itself. Each subclass has a tag."""
