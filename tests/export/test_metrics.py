"""Metrics: their names, values and number; the example alerts and dashboard ask for what is there."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from overlaptop.export import metrics
from overlaptop.export.metrics import SERIES_PER_RANK, JobsCollector
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.wire.messages import CollectiveSpan, OwnCost, RankEnd
from tests.fleet.builders import GB, MS, detail, info, sample, status, step, welcome
from tests.fleet.fakes import FakeSession
from tests.tui.waits import STEPS, waiting_job

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "prometheus"


def collected(*snapshots: Snapshot) -> dict[tuple, float]:
    """The samples after these Snapshots, by name and sorted labels without the job's, as they are read."""
    collector, registry = JobsCollector(), CollectorRegistry(auto_describe=False)
    registry.register(collector)
    for snapshot in snapshots:
        collector.add(snapshot)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (each.name, *(f"{name}={value}" for name, value in sorted(each.labels.items()) if name != "job")): (
            each.value
        )
        for family in families
        for each in family.samples
    }


def of_rank(found: dict[tuple, float], name: str, rank: int, *labels: str) -> float:
    wanted = {f"rank={rank}", *labels}
    (value,) = (value for (each, *has), value in found.items() if each == name and wanted <= set(has))
    return value


def test_times_and_late_ranks_are_counters() -> None:
    found = collected(waiting_job(late=lambda _: 2).tick())
    assert of_rank(found, "overlaptop_steps_total", 0) == STEPS
    assert of_rank(found, "overlaptop_step_duration_seconds_count", 0) == STEPS
    assert of_rank(found, "overlaptop_step_duration_seconds_sum", 0) == pytest.approx(0.08 * STEPS)
    names = "hidden", "exposed", "compute_only", "copy_only", "idle", "fused"
    parts = [of_rank(found, "overlaptop_step_part_seconds_total", 0, f"part={part}") for part in names]
    assert parts[0] == pytest.approx(0.02 * STEPS)
    assert sum(parts) == pytest.approx(0.08 * STEPS)
    waited = of_rank(found, "overlaptop_communication_seconds_total", 0, "kind=waiting", "exposed=true")
    assert waited == pytest.approx(0.016 * STEPS)
    # Who is late, and what it costs.
    assert [of_rank(found, "overlaptop_rank_late", rank) for rank in range(4)] == [0, 0, 1, 0]
    late = [of_rank(found, "overlaptop_late_collectives_total", rank) for rank in range(4)]
    assert late == [0, 0, 2 * STEPS, 0]
    caused = of_rank(found, "overlaptop_caused_wait_seconds_total", 2)
    all_reduce = "group=0 default_pg", "op=allreduce_"
    assert found["overlaptop_collective_wait_seconds_total", *all_reduce] == pytest.approx(caused)
    assert found["overlaptop_collective_bytes_total", *all_reduce] == STEPS * (3 << 20)


def test_hub_is_told_of_findings() -> None:
    session = waiting_job()
    JobsCollector().add(session.tick(), session.send)
    assert "slow_compute" in session.found


def test_snapshots_add_up() -> None:
    session = FakeSession(welcome(), info(0), info(1), status(), step(0, 0), step(1, 0))
    first = session.tick()
    session.say(step(0, 1), replace(step(0, 2), captured=True))
    found = collected(first, session.tick())
    assert of_rank(found, "overlaptop_step_duration_seconds_count", 0) == 2
    assert of_rank(found, "overlaptop_steps_total", 0) == 3
    assert of_rank(found, "overlaptop_step_duration_seconds_count", 1) == 1


def test_what_is_not_known_has_no_sample() -> None:
    session = FakeSession(welcome(), info(0, exact=False), status(), step(0, 0))
    found = collected(session.tick())
    names = {name for name, *_ in found}
    assert ("overlaptop_step_part_seconds_total", "node=gpu-a", "part=idle", "rank=0") not in found
    assert not {"overlaptop_rank_late", "overlaptop_launch_lead_seconds"} & names
    assert not {name for name in names if "link" in name or "collective" in name}


def test_trouble_and_a_lost_hub_are_seen() -> None:
    session = FakeSession(welcome(world_size=1), info(0), status(), step(0, 0))
    assert collected(session.tick())["overlaptop_job_up",] == 1
    session.say(RankEnd(0, step(0, 1).start_ns, clean=False, exit_code=-9), status(ended=True))
    session.fleet.set_hub_state(HubState.ENDED)
    found = collected(session.tick())
    assert found["overlaptop_job_up",] == 0
    assert found["overlaptop_job_trouble", "kind=died"] == 1


def test_series_are_bounded_at_1024_ranks_and_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_OPERATIONS", 4)
    ranks = 1030
    session = FakeSession(welcome(world_size=ranks), status())
    spans = tuple(CollectiveSpan(f"op{n}_", 8, "0", True, n * MS, (n + 1) * MS) for n in range(9))
    for rank in range(ranks):
        made = replace(detail(rank, 0), collectives=spans)
        lead = step(rank, 0, launch_lead_ns=5)
        cost = OwnCost(rank, 0.001, 0.001, None, None, True)
        session.say(info(rank, world_size=ranks), sample(rank, nvlink=(GB, GB)), lead, made, cost)
    found = collected(session.tick())
    of_ranks = Counter(label for _, *labels in found for label in labels if label.startswith("rank="))
    assert len(of_ranks) == 1024
    assert set(of_ranks.values()) == {SERIES_PER_RANK}
    assert len([name for name, *_ in found if name == "overlaptop_collectives_total"]) == 4
    assert len(found) - of_ranks.total() < 40


# The examples


def test_the_examples_ask_for_metrics_that_exist() -> None:
    known = {f"overlaptop_{name}" for name in metrics._FAMILIES}
    known |= {f"overlaptop_step_duration_seconds_{part}" for part in ("sum", "count")}
    for example in ("alerts.yml", "dashboard.json"):
        asked = set(re.findall(r"(?<!:)\boverlaptop_[a-z_]+(?=[{\[, )])", (EXAMPLES / example).read_text()))
        assert len(asked) > 2
        assert asked - known == set()
    panels = json.loads((EXAMPLES / "dashboard.json").read_text())["panels"]
    assert all(panel["targets"] for panel in panels)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_each_alert_fires_on_a_broken_job_only(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    text = (Path(__file__).parent / "alerts_test.yml").read_text()
    rules.write_text(text.replace("- ALERTS", f"- {EXAMPLES / 'alerts.yml'}"))
    done = subprocess.run(["promtool", "test", "rules", rules], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
