"""Whatever keeps the agent from starting, the job runs: unmeasured, and one line says so."""

import pytest

from tests.agent.script.conftest import both, same

ATTACHES = "import overlaptop.agent\noverlaptop.agent.attach()\noverlaptop.agent.step()\n"
TRAINS = "print('trained')\n"

PLACE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
BROKEN = {
    # By name of a module that is found before the agent's own: its text.
    "msgspec": "raise ImportError('its C extension was built for another Python')",
    "sitecustomize": "import hashlib\ndef refuse(_): raise MemoryError\nhashlib.sha256 = refuse",
}


@pytest.mark.parametrize("module", BROKEN)
@pytest.mark.parametrize("attaches", [False, True], ids=["by -m", "by attach"])
def test_a_fault_at_the_agents_start_is_one_line(script, module, attaches):
    script(BROKEN[module] + "\n", f"broken/{module}.py")
    path = script(ATTACHES * attaches + TRAINS)
    broken = str(path.parent / "broken")
    plain, with_agent = both(str(path), folder=path.parent, PYTHONPATH=broken, **PLACE)
    told = plain if attaches else with_agent
    assert (told.returncode, told.stdout) == (0, "trained\n")
    (line,) = told.stderr.splitlines()
    assert line.startswith("overlaptop: agent disabled itself: ")
    assert line.endswith("; the job goes on unmeasured")
    assert (with_agent.returncode, with_agent.stdout) == (0, "trained\n")


BYTES = "caf\udce9"


@pytest.mark.parametrize(
    "environment", [{"TORCHELASTIC_RUN_ID": BYTES}, {"RANK": "9" * 5000}], ids=["bytes", "rank"]
)
def test_no_variable_of_a_launcher_ends_the_job(script, environment):
    path = script(TRAINS)
    _, with_agent = both(str(path), folder=path.parent, **{**PLACE, **environment})
    assert (with_agent.returncode, with_agent.stdout, with_agent.stderr) == (0, "trained\n", "")


def test_there_is_no_thread_before_torch_is_imported(script):
    """Python warns of a fork beside threads, and no process with two enters a user namespace."""
    path = script("import os\nprint(len(os.listdir('/proc/self/task')))\n")
    plain, with_agent = both(str(path), folder=path.parent, **PLACE)
    assert plain.stdout == "1\n"
    same(plain, with_agent)
