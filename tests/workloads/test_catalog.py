import re
import subprocess
import sys
from itertools import product

import pytest

from overlaptop.agent import options as agent_options
from overlaptop.workloads.catalog import DDP, WORKLOADS, find
from overlaptop.workloads.options import OptionsError, value_text


def test_the_catalog_lists_every_workload_of_its_folder():
    paths = DDP.path.parent.glob("*.py")
    scripts = {path for path in paths if '__name__ == "__main__"' in path.read_text()}
    assert {workload.path for workload in WORKLOADS} == scripts - {DDP.path.with_name("__main__.py")}


def test_a_workload_is_found_by_name_file_name_and_path(tmp_path, monkeypatch):
    monkeypatch.chdir(DDP.path.parent.parent)
    for name in ("ddp", "ddp.py", str(DDP.path), f"{DDP.path.parent.name}/ddp.py"):
        assert find(name) is DDP
    for other in ("", "nonesuch", "catalog", "train.py", "/nonesuch/ddp.py", "."):
        assert find(other) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ddp.py").touch()  # a script of one's own
    assert (find("ddp.py"), find("ddp")) == (None, DDP)


def test_list_has_names_and_paths_and_imports_no_torch(tmp_path):
    listing = (
        "import runpy, sys\n"
        "runpy.run_module('overlaptop.workloads', run_name='__main__')\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    for cwd in (WORKLOADS[0].path.parent.parent, tmp_path):
        words = [sys.executable, "-c", listing]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=cwd)
        lines = done.stdout.splitlines()
        assert lines[::2] == [f"{each.name:18} {each.summary}" for each in WORKLOADS]
        assert [cwd / path.strip() for path in lines[1::2]] == [each.path for each in WORKLOADS]


def test_what_a_check_of_options_says_is_what_the_script_says(capsys):
    """One parser serves both; here: one with a value that is none, and one that does not exist."""
    for workload, words in product(WORKLOADS, (["--steps", "many"], ["--nonesuch"])):
        with pytest.raises(OptionsError) as refused:
            workload.check(words)
        with pytest.raises(SystemExit) as ended:
            workload.parser().parse_args(words)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"{workload.path.name}: error: {refused.value}\n"


def test_every_default_is_a_value_that_the_option_takes():
    for workload, where in product(WORKLOADS, ("cuda", "shared", "cpu")):
        for option in workload.options:
            default = option.default_on(where)
            if option.is_switch:
                assert isinstance(default, bool)
            elif default is not None:
                flag = [option.flag] if option.flag.startswith("-") else []
                assert [*workload.check([*flag, value_text(default)]).values()] == [default]


def test_torchrun_takes_no_option_for_one_of_its_own(capsys):
    """It reads the beginning of an option of its own as that option, also behind the script."""
    from torch.distributed.run import get_args_parser

    with pytest.raises(SystemExit):
        agent_options.parse(["--help"])
    flags = set(re.findall("^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    for workload in WORKLOADS:
        flags |= {flag for flag in workload.parser()._option_string_actions if flag.startswith("--")}
    own = get_args_parser()._option_string_actions
    assert not {flag for flag in flags - {"--help"} if any(each.startswith(flag) for each in own)}
