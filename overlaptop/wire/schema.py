"""Base classes of messages. Each message is declared once, which defines packing, checks and compatibility.

A message is a class with a tag and fields. The type of a field has its bounds (bounds.py). On the wire it
is one msgpack array: the tag, then the fields in order. A tag never changes its meaning. New fields are
appended and have a default, so either side may be the newer one: an older peer ignores fields that it does
not know, and missing fields take their default. Any other change raises PROTOCOL_VERSION.
"""

import msgspec


class Part(msgspec.Struct, frozen=True, array_like=True):
    """An array of fields inside a message."""

    def inconsistency(self) -> str:
        """Return why fields contradict each other although each is valid, as one line.
        Empty if they do not.
        """
        return ""


class Message(Part, frozen=True):
    """Data that is sent by itself. Each subclass has a tag."""
