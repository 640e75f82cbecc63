"""The public records: their reference in docs/json.md, their schema, and what they may not depend on."""

import json
from inspect import cleandoc
from pathlib import Path

from overlaptop.records import schema
from tests.commands.running import run_here
from tests.snapshots import check

PAGE = Path(__file__).parents[1] / "docs" / "json.md"
BEGIN = "<!-- From here: made from overlaptop/records.py; UPDATE_SNAPSHOTS=1 writes it anew. -->\n"
END = "<!-- To here. -->\n"


def type_of(of):
    """A field's type, as a reader of JSON would say it."""
    if "anyOf" in of:
        return " or ".join(map(type_of, of["anyOf"]))
    if "enum" in of:
        return ", ".join(f"`{json.dumps(value)}`" for value in of["enum"])
    if "$ref" in of:
        return "an object"
    if of.get("type") == "array":
        return f"list of {type_of(of['items'])}" if of["items"] else "list"
    return of.get("type", "any")


def description_of(of):
    return of.get("description") or next(
        (found for each in of.get("anyOf", ()) if (found := description_of(each))), ""
    )


def reference():
    """A section for each record."""
    lines = []
    for each in schema()["$defs"].values():
        fields = dict(each["properties"])
        kind = fields.pop("type", None)
        title = f"`{kind['enum'][0]}`" if kind else each["title"]
        lines += [
            "",
            f"### {title}",
            "",
            cleandoc(each["description"]),  # msgspec does so from 0.23 on
            "",
            "| field | type | meaning |",
            "| --- | --- | --- |",
        ]
        lines += [f"| `{name}` | {type_of(of)} | {description_of(of)} |" for name, of in fields.items()]
    return "\n".join(lines) + "\n"


def test_reference_in_docs_is_that_of_the_code():
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    made = f"{head}{BEGIN}{reference()}\n{END}{tail}"
    check(PAGE, made)


def test_schema_is_printed():
    done = run_here("--json-schema")
    assert (done.returncode, done.stderr, json.loads(done.stdout)) == (0, "", schema())
