"""``overlaptop mcp``, spoken to by a client of the official package."""

import os
import sys
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from mcp import Client, StdioServerParameters

from overlaptop.commands import mcp
from overlaptop.jobs.record import list_jobs
from tests.fleet.builders import Clock
from tests.processes import eventually
from tests.recording.played import played
from tests.trials.live_job import LiveJob
from tests.tui.waits import waiting_job

from .running import LATE, START_LIMIT_S


@asynccontextmanager
async def connected():
    words = ["-m", "overlaptop", "mcp"]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with Client(server) as client:
        yield client


async def test_an_agent_reads_the_cause_of_a_late_rank(start_ranks):
    start_ranks(*LATE)
    (record,) = eventually(list_jobs, START_LIMIT_S)
    async with connected() as client:
        (job,) = (await client.call_tool("jobs")).structured_content["jobs"]
        assert (job["job"], job["world_size"], job["type"]) == (record.job, 2, "job")
        causes = []
        while not causes:  # on a busy machine the first steps do not tell yet
            found = (await client.call_tool("findings", {"job": job["job"]})).structured_content
            causes = [each for each in found["findings"] if each["rule"] == "late_launch" and each["line"]]
        assert found["late_rank"] == 1
        assert "sleeps" in found["cause"]
        assert (causes[0]["ranks"], "faults.py" in causes[0]["line"]) == ([1], True)
        state = (await client.call_tool("state")).structured_content
        assert {each["rank"] for each in state["records"] if each["type"] == "step"} == {0, 1}


async def test_an_agent_reads_how_a_recorded_run_went_and_what_differs(tmp_path):
    path = str(tmp_path / "run.mcap")
    played(Clock(), Path(path), 40)
    async with connected() as client:
        run = (await client.call_tool("report", {"source": path})).structured_content["report"]
        assert (run["steps"], run["late_ranks"][0]["rank"]) == (40, 1)
        halves = {"a": f"{path}@+0s-+10s", "b": f"{path}@+10s-+20s"}
        found = (await client.call_tool("compare", halves)).structured_content
        assert not any(each["differs"] for each in found["differences"])
        assert found["note"] == ""
        answer = await client.call_tool("report", {"source": "/dev/zero"})
        assert answer.is_error


async def test_tools_are_read_only_and_say_what_is_wrong():
    async with connected() as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["jobs", "state", "findings", "report", "compare"]
        assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
        answer = await client.call_tool("state")
        assert answer.is_error
        assert "no job with an agent runs here" in answer.content[0].text
        assert (await client.call_tool("jobs")).structured_content == {"jobs": []}


async def test_with_control_an_agent_tries_values_and_delays(quickly, monkeypatch, capsys):
    job = LiveJob(critical={1: 1.0})
    monkeypatch.setattr(mcp, "join", lambda *_: nullcontext(job))
    async with Client(mcp.make_server(control=True)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        changing = {name for name, tool in tools.items() if not tool.annotations.read_only_hint}
        assert changing == {"tune", "slack"}
        tuned = await client.call_tool("tune", {"knob": "bucket_cap_mb", "values": [60, 400]})
        result = tuned.structured_content["result"]
        assert (result["best"], result["present"], job.value) == (60, "25", 25)
        assert {each["value"] for each in tuned.structured_content["values"]} == {60, 400}
        delayed = (await client.call_tool("slack", {"delay_ns": 5_000_000})).structured_content
        assert [each["verdict"] for each in delayed["ranks"]] == ["slack", "critical"]
        assert "trial 1 of 60 MiB" in capsys.readouterr().err
        for name, arguments in (("tune", {"knob": "none"}), ("slack", {"ranks": [7]})):
            assert (await client.call_tool(name, arguments)).is_error


async def test_of_many_ranks_some_must_be_named(monkeypatch):
    snapshot = waiting_job(late=lambda _: 2).tick()
    monkeypatch.setattr(mcp, "_look", lambda *_: snapshot)
    monkeypatch.setattr(mcp, "MAX_RANKS", 3)
    async with Client(mcp.make_server()) as client:
        answer = await client.call_tool("state")
        assert answer.is_error
        assert "the job has 4 ranks: name some" in answer.content[0].text
        found = (await client.call_tool("state", {"ranks": [1, 3]})).structured_content
        assert [each["rank"] for each in found["records"] if each["type"] == "step"] == [1, 3]
