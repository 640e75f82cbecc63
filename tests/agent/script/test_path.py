"""A script imports what it imports without the agent, and the agent imports nothing of the script's."""

from __future__ import annotations

import functools
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.agent.script.conftest import both, same

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
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
    """A folder with a module for each of these names that must not be imported."""
    folder.mkdir(exist_ok=True)
    for name in names():
        (folder / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    return folder


SHOWS_PATH = "import sys; print(sys.argv, sys.path[:2], __name__)\n"


@pytest.mark.parametrize(
    "words",
    [("../job/train.py",), ("train.py",), ("-m", "train"), ("-P", "../job/train.py"), ("-P", "-m", "site")],
    ids=" ".join,
)
def test_modules_of_the_folder_it_starts_in_are_not_imported_before_the_script_asks_for_them(
    tmp_path, sockets, words
):
    here = traps(tmp_path / "here")
    (tmp_path / "job").mkdir()
    for folder in (here, tmp_path / "job"):
        (folder / "train.py").write_text(SHOWS_PATH)
    plain, with_agent = both(*words, folder=here)
    assert plain.stderr == ""
    same(plain, with_agent)


def test_a_script_finds_the_modules_beside_it_whatever_the_agent_has_imported(script, tmp_path):
    for name in names():
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "token.py").unlink()
    (tmp_path / "token").mkdir()  # no module where the standard library has one
    script("".join(f"import {name}; print({name}.__file__)\n" for name in names()))
    plain, with_agent = both("train.py", folder=tmp_path)
    assert plain.stdout.count(f"{tmp_path}/") >= len(names()) - 5  # some are there before any script
    same(plain, with_agent)


def test_a_directory_that_is_gone_adds_nothing(script, tmp_path):
    path = script(SHOWS_PATH)
    leave = ("sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh")
    plain, with_agent = both(str(path), folder=tmp_path, before=leave)
    assert plain.stderr == ""
    same(plain, with_agent)


def test_the_commands_import_nothing_of_the_folder_they_start_in(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "overlaptop", "doctor", "--help"],
        capture_output=True,
        text=True,
        cwd=traps(tmp_path / "here"),
    )
    assert (done.returncode, done.stderr) == (0, "")


TRAINS = """
    import torch
    from overlaptop.agent import knob
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(8):
        weight.square().sum().backward()
        optimizer.step()
    print("trained")
"""


def test_a_measured_job_imports_no_more_of_its_own_modules_than_alone(run_ranks, tmp_path, monkeypatch):
    """Copies of the standard library's, each of which says that it was imported."""
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    mark = (
        "\nimport os as _os"
        "\n_file = _os.open(_os.environ['MARKS'], _os.O_CREAT | _os.O_WRONLY | _os.O_APPEND)"
        "\n_os.write(_file, (__name__ + '\\n').encode()); _os.close(_file); del _file\n"
    )
    for source in STANDARD_LIBRARY.glob("*.py"):
        (tmp_path / source.name).write_text(source.read_text(encoding="utf-8") + mark)
    marks = []
    for agent in (False, True):
        job = run_ranks(TRAINS, nproc=1, agent=agent, options=("--source", "host"))
        assert job.codes == [0], job.errs
        assert job.outs == ["trained\n"]
        marks.append(set((tmp_path / "marks").read_text().split()))
        (tmp_path / "marks").unlink()
    assert len(job.steps()) == 7
    assert not job.notices()
    assert "random" in marks[0] & marks[1]
    assert marks[1] <= marks[0]
