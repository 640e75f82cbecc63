"""Messages with fields at their bounds, made from the declarations: what the codec lets in at an edge."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect
from msgspec.structs import replace

from overlaptop.wire.bounds import MAX_DURATION_NS
from overlaptop.wire.codec import WireError, encode
from overlaptop.wire.schema import Message

LONG = "wide 測 " * 40
HOSTILE = "\x1b]0;x\x07\u202e\r\n[red]{value}"


def at_bounds(base: Any) -> list[Any]:
    """The message with one field after the other at each of its edges, and with all at once, as far as the
    codec takes it. Whom it is about stays.
    """
    edges = {
        field.name: tuple(_edges(field.type, base, field.name))
        for field in inspect.type_info(type(base)).fields  # type: ignore[attr-defined]
        if field.name not in ("rank", "command", "job", "id", "protocol")
    }
    edges = {name: values for name, values in edges.items() if values}
    changes = [{name: value} for name, values in edges.items() for value in values]
    changes += [
        {name: values[at % len(values)] for name, values in edges.items()}
        for at in range(max(map(len, edges.values())))
    ]
    return [changed for change in changes if _travels(changed := replace(base, **change))]


def _edges(declared: inspect.Type, base: Any, name: str) -> Iterator[Any]:
    match declared:
        case inspect.UnionType():
            for each in declared.types:
                yield from _edges(each, base, name)
        case inspect.NoneType():
            yield None
        case inspect.BoolType():
            yield from (False, True)
        case inspect.IntType() | inspect.FloatType():
            yield from (declared.ge, declared.le)
        case inspect.StrType(pattern=None):
            yield from ("", HOSTILE, LONG)
        case inspect.StrType(pattern=pattern) if pattern and "[" not in pattern:  # one of some words
            yield from (re.sub(r"\\(.)", r"\1", word) for word in pattern[3:-3].split("|"))
        case inspect.VarTupleType(item_type=inspect.IntType(ge=int(least), le=int(most))):
            yield from ((), (least, most) * 3, (most, least), (most,) * 2, (most - 1, most))
            if least == -MAX_DURATION_NS:
                yield from ((0, 0), (-1, 1))
        case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
            yield ()
            inner = at_bounds(_least(cls))
            yield tuple(each for each in inner if _travels(replace(base, **{name: (each,)})))
        case inspect.VarTupleType(item_type=item):
            yield from ((), tuple(_edges(item, base, name)))


def _least(cls: type[Any]) -> Any:
    """A part of a message with the first edge of each field."""
    fields = inspect.type_info(cls).fields  # type: ignore[attr-defined]
    return cls(*(next(_edges(field.type, None, field.name), "a") for field in fields))


def _travels(message: Any) -> bool:
    if not isinstance(message, Message):
        return True  # the message that it is in is asked
    try:
        encode(message)
    except WireError:
        return False
    return True
