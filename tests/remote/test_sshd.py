"""A real sshd: hosts that let nobody in, are not there or speak otherwise, and jobs that come later."""

from contextlib import ExitStack

import pytest

from overlaptop.fleet.snapshot import HubState
from tests.remote.hosts import make_key, public_part, why_not
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be")

NOISE = """
echo "Welcome to the cluster"
echo "quota exceeded" >&2
printf "\\033[31m\\r\\n\\000"
"""


@pytest.fixture(scope="module")
def job(lab, warm):
    """On host-a alone."""
    with NodeJob(warm, lab.folder / "job", [lab.servers["host-a"].jobs_dir]) as started:
        started.record()
        yield started


def test_unreachable_hosts_say_why_and_the_others_go_on(lab, job):
    good, other_key = lab.servers["host-a"], make_key(lab.folder / "other_key")
    lab.configure("wrong-key", good, key=other_key)
    lab.configure("unknown-key", good, known_by="\n")
    lab.configure("changed-key", good, known_by=f"changed-key {public_part(other_key)}\n")
    lab.add_server("refuses").kill()
    lab.add_server("open-to-all").jobs_dir.chmod(0o755)
    noisy = lab.add_server("noisy", good.jobs_dir)
    (noisy.home / ".bashrc").write_text(NOISE)
    whys = {
        "wrong-key": "permission denied (publickey)",
        "unknown-key": "its host key is not known here: connect once with ssh unknown-key",
        "changed-key": "its host key is another than before",
        "nowhere.invalid": "no address is known for nowhere.invalid",
        "refuses": "the host refuses port",
        "open-to-all": "has mode drwxr-xr-x, others can get in",
        "host-b": "no job in ",
    }
    with Watching("noisy", *whys).connect() as watching:
        watching.until_all_step(1)
        for name, why in whys.items():
            reported = [line for line in watching.reported if line.startswith(f"{name}: ")]
            assert len(reported) == 1
            assert why in reported[0]
            assert reported[0].isprintable()
            assert why in watching.node(name).note
            assert watching.node(name).hub_state is not HubState.LIVE
        assert watching.node("noisy").hub_state is HubState.LIVE
        assert watching.snapshot.hub_state is HubState.LIVE
        assert watching.rank(0).node == "noisy"


def test_job_that_starts_on_a_watched_host_is_picked_up(lab, tmp_path, warm):
    later = lab.add_server("later").jobs_dir
    with ExitStack() as jobs, Watching("later").connect() as watching:
        watching.until(lambda _: watching.hosts["later"].reason.startswith("no job in "))
        jobs.enter_context(NodeJob(warm, tmp_path / "first", [later]))
        watching.until_all_step(1)
        first_key = watching.session.job_key
        assert watching.node("later").hub_state is HubState.LIVE

        jobs.enter_context(NodeJob(warm, tmp_path / "second", [later]))
        watching.until(lambda _: len(watching.session.jobs) == 2)
        assert watching.session.job_key == first_key
        (second_key,) = {each.job for each in watching.session.jobs} - {first_key}
        watching.session.select(second_key)
        watching.until(lambda snapshot: snapshot.job is not None and snapshot.job.job == second_key)
        watching.until_all_step(1)
