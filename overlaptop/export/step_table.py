"""CSV: the step records, a row for each rank and step."""

import csv
import json
from collections.abc import Iterable
from typing import TextIO

from msgspec.structs import asdict

from overlaptop.records import StepRecord


def write(records: Iterable[StepRecord], out: TextIO) -> None:
    """Write a header and a row for each record, with the fields of ``--json``; unknown is an empty cell.

    `out` was opened with ``newline=""``.
    """
    writer = csv.writer(out)
    writer.writerow(StepRecord.__struct_fields__)
    writer.writerows([_cell(value) for value in asdict(record).values()] for record in records)


def _cell(value: object) -> object:
    if isinstance(value, bool | dict):  # true and {"overlap": "≤"}, as in JSON
        return json.dumps(value, ensure_ascii=False)
    return value
