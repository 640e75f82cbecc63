"""A script imports what it imports without the agent, and the agent imports nothing of the script's."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.script.conftest import both, same

IMPORTED = """
import importlib.machinery, runpy, sys
before = set(sys.modules)
import overlaptop.agent.script.runner
for name in sorted(set(sys.modules) - before):
    if name in sys.stdlib_module_names and not (
        importlib.machinery.BuiltinImporter.find_spec(name)
        or importlib.machinery.FrozenImporter.find_spec(name)
    ):
        print(name)
"""


@functools.cache
def names() -> tuple[str, ...]:
    """What the agent imports of the standard library that a folder could have modules in the place of."""
    words = [sys.executable, "-P", "-c", IMPORTED]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    found = tuple(said.stdout.split())
    assert {"token", "random", "logging", "signal"} <= set(found)
    return found


def traps(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names():
        (folder / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    return folder


SHOWS_PATH = "import sys; print(sys.argv, sys.path[:2], __name__)\n"


@pytest.mark.parametrize(
    "words", [("../job/train.py",), ("-m", "train"), ("-P", "../job/train.py")], ids=" ".join
)
def test_agent_imports_no_module_of_the_start_folder(tmp_path, sockets, words):
    here = traps(tmp_path / "here")
    (tmp_path / "job").mkdir()
    for folder in (here, tmp_path / "job"):
        (folder / "train.py").write_text(SHOWS_PATH)
    plain, with_agent = both(*words, folder=here)
    assert plain.stderr == ""
    same(plain, with_agent)


def test_script_finds_the_modules_beside_it(script, tmp_path):
    for name in names():
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "token.py").unlink()
    (tmp_path / "token").mkdir()  # no module where the standard library has one
    script("".join(f"import {name}; print({name}.__file__)\n" for name in names()))
    plain, with_agent = both("train.py", folder=tmp_path)
    assert plain.stdout.count(f"{tmp_path}/") >= len(names()) - 5  # some are there before any script
    same(plain, with_agent)
