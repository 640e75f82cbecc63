"""Real sshds: a job on two hosts, and hosts that let nobody in or are not there."""

import signal

import pytest

from overlaptop.fleet.snapshot import HubState
from tests.remote.hosts import make_key, why_not
from tests.remote.node_job import NodeJob
from tests.remote.watching import Watching, overlaptop

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be")

NOISE = """
echo "Welcome to the cluster"
echo "quota exceeded" >&2
printf "\\033[31m\\r\\n\\000"
"""


def test_unreachable_hosts_say_why_and_the_others_go_on(lab, warm):
    good = lab.add_server("good")
    lab.configure("wrong-key", good, key=make_key(lab.folder / "other_key"))
    lab.add_server("idle")
    lab.add_server("refuses").kill()
    lab.add_server("open-to-all").jobs_dir.chmod(0o755)
    noisy = lab.add_server("noisy", good.jobs_dir)
    (noisy.home / ".bashrc").write_text(NOISE)
    whys = {
        "wrong-key": "permission denied (publickey)",
        "refuses": "the host refuses port",
        "open-to-all": "has mode drwxr-xr-x, others can get in",
        "idle": "no job in ",
    }
    with (
        NodeJob(warm, lab.folder / "job", [good.jobs_dir]) as job,
        Watching("noisy", *whys).connect() as watching,
    ):
        job.record()
        watching.until_all_step(1)
        for name, why in whys.items():
            (reported,) = [line for line in watching.reported if line.startswith(f"{name}: ")]
            assert why in reported
            assert why in watching.node(name).note
        assert watching.node("noisy").hub_state is HubState.LIVE
        assert watching.snapshot.ranks[0].node == "noisy"


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
        assert changed.stdout.startswith("bucket_cap_mb 1 → 2 at step "), changed.stderr
        right.signal(signal.SIGSTOP)
        watching.until(lambda _: watching.node("right").hub_state is HubState.LOST)
        assert "silent" in watching.node("right").note
        assert [view.node_lost for view in watching.snapshot.ranks] == [False, True]
        last = watching.of(0)[-1]
        watching.until(lambda _: watching.of(0)[-1] >= last + 10)
        right.signal(signal.SIGCONT)
        watching.session.retry()
        watching.until_all_step(2, 10)
        for rank in (0, 1):
            steps = watching.of(rank)
            assert steps == list(range(steps[0], steps[-1] + 1)), f"of rank {rank} some are missing"
