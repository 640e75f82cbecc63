import subprocess
import sys
from pathlib import Path

import pytest

from overlaptop.workloads.catalog import WORKLOADS, find

NOT_WORKLOADS = {"__init__", "__main__", "catalog", "gpt", "job"}


def test_the_catalog_lists_every_workload_of_its_folder():
    (folder,) = {workload.path.parent for workload in WORKLOADS}
    scripts = {path.stem for path in folder.glob("*.py")} - NOT_WORKLOADS
    assert {workload.name for workload in WORKLOADS} == scripts
    assert all(workload.path.is_file() and workload.path.stem == workload.name for workload in WORKLOADS)


def test_a_workload_is_found_by_name_file_name_and_path(monkeypatch):
    ddp = find("ddp")
    assert ddp is not None
    assert ddp.summary
    assert find("ddp.py") is ddp
    assert find(str(ddp.path)) is ddp
    monkeypatch.chdir(ddp.path.parent.parent)
    assert find(f"{ddp.path.parent.name}/ddp.py") is ddp


@pytest.mark.parametrize("other", ["", "nonesuch", "catalog", "train.py", "/nonesuch/ddp.py", "."])
def test_what_is_not_bundled_is_not_found(other):
    assert find(other) is None


def test_listing_the_workloads_imports_no_torch():
    listing = (
        "import runpy, sys\n"
        "runpy.run_module('overlaptop.workloads', run_name='__main__')\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    for workload in WORKLOADS:
        assert workload.name in done.stdout
        assert workload.summary in done.stdout
        assert workload.path.name in done.stdout


def test_the_help_of_the_demo_names_every_workload():
    done = subprocess.run(
        [sys.executable, "-m", "overlaptop", "demo", "--help"], capture_output=True, text=True, check=True
    )
    for workload in WORKLOADS:
        assert workload.name in done.stdout


def test_the_listed_paths_exist_where_they_are_listed(tmp_path):
    root = Path(WORKLOADS[0].path).parent.parent
    for cwd in (root, tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "overlaptop.workloads"],
            capture_output=True,
            text=True,
            check=True,
            cwd=cwd,
        )
        paths = [line.strip() for line in done.stdout.splitlines() if line.startswith(" ")]
        assert len(paths) == len(WORKLOADS)
        assert all((cwd / path).is_file() for path in paths)
