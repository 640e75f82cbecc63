"""Real sshds: a job on two hosts, hosts that let nobody in or are not there, and jobs that come later."""

import signal
from contextlib import ExitStack

import pytest

from overlaptop.fleet.snapshot import HubState
from tests.remote.hosts import make_key, public_part, why_not
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching, overlaptop

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
        assert watching.snapshot.ranks[0].node == "noisy"


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


def test_one_job_on_two_hosts_is_changed_lost_and_had_again(lab, tmp_path, warm):
    left, right = lab.add_server("left"), lab.add_server("right")
    nodes = [left.jobs_dir, right.jobs_dir]
    with NodeJob(warm, tmp_path / "job", nodes), Watching("left", "right").connect() as watching:
        watching.until_all_step(2)
        assert len(watching.session.jobs) == 1
        for rank, node in enumerate(watching.snapshot.nodes):
            assert (node.name, node.ranks) == (("left", "right")[rank], (rank,))
            assert abs(node.offset_ns) <= node.residual_ns, "their clocks are this machine's"
        changed = overlaptop("set", "bucket_cap_mb=2", "--host", "left", "--host", "right")
        assert changed.returncode == 0, changed.stderr
        assert changed.stdout.startswith("bucket_cap_mb 1 → 2 at step ")
        watching.until(lambda snapshot: {knob.knob.value for knob in snapshot.knobs} == {2})

        right.signal(signal.SIGSTOP)
        watching.until(lambda _: watching.node("right").hub_state is HubState.LOST)
        assert "silent" in watching.node("right").note
        assert [view.node_lost for view in watching.snapshot.ranks] == [False, True]
        assert watching.snapshot.hub_state is HubState.LIVE
        last = watching.of(0)[-1]
        watching.until(lambda _: watching.of(0)[-1] >= last + 10)
        right.signal(signal.SIGCONT)
        watching.session.retry()
        watching.until_all_step(2, 10)
        for rank in (0, 1):
            steps = watching.of(rank)
            assert steps == list(range(steps[0], steps[-1] + 1)), f"of rank {rank} some are missing"
