"""The records of ``--json``, which users' programs read: what a field is called and holds is decided here.

Each class is one type of record, its fields in the order in which they are printed.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
from msgspec import Meta


def says(text: str) -> Meta:
    """What a field holds, for the reference and the schema."""
    return Meta(description=text)


class Record(msgspec.Struct, tag_field="type"):
    """A line of JSON."""

    @property
    def line(self) -> str:
        """The record as a line of ASCII, whatever encoding stdout has."""
        return json.dumps(msgspec.to_builtins(self))


class Check(Record, tag="check"):
    """What one check of the doctor found."""

    host: Annotated[str, says("the host as it was named; empty: this machine")]
    check: Annotated[str, says("what was looked at, in one word")]
    status: Annotated[Literal["ok", "warning", "fault", "unknown"], says("whether it works")]
    finding: Annotated[str, says("what was found")]
    remedy: Annotated[str, says("what to do; empty: nothing, or `finding` says it")]


class Doctor(Record, tag="doctor"):
    """What the doctor's checks of one host come to, after them."""

    host: Annotated[str, says("as in `check`")]
    works: Annotated[bool, says("whether monitoring will work there")]
