"""A job on several hosts on the screen: ranks by host, connections that break, and where things are."""

import re
import socket
from unittest.mock import Mock

from overlaptop.tui.hosts.screen import HostsScreen
from overlaptop.wire import commands
from overlaptop.wire.commands import CommandReport
from tests.fleet.builders import S, step

from .clusters import Cluster
from .fakes import (
    SIZES,
    app_of,
    line_of,
    opened,
    screen_lines,
    shown,
    table_ranks,
    table_rows,
)


async def test_cursor_follows_the_table_and_sorted_rows_have_a_host():
    cluster = Cluster("gpu-a", "gpu-b")
    async with opened(cluster.live()) as (app, pilot):
        await shown(app, pilot)
        lines = screen_lines(app)
        at = next(y for y, line in enumerate(lines) if line.startswith("      3  "))
        for y in (at, at - 2):  # the second is the line of gpu-b
            await pilot.click(offset=(6, y))
            assert app.dashboard.state.selected.rank == 3
        await shown(app, pilot, "up")
        assert app.dashboard.state.selected.rank == 2
        await shown(app, pilot, "S")  # the other way round: hosts as well
        assert table_rows(app) == ["gpu-b", 3, 2, "gpu-a", 1, 0]
        text = await shown(app, pilot, "s")
        assert "── gpu-a" not in text
        assert table_ranks(app) == [3, 2, 1, 0]
        assert "gpu-b" in line_of(text, "     3  ")


async def test_lost_connection_marks_its_last_figures_until_it_is_back():
    cluster = Cluster("gpu-a", "gpu-b")
    async with opened(cluster.live()) as (app, pilot):
        assert "73.3 %" in line_of(await shown(app, pilot, "end"), "▸ ")
        cluster.clock.pass_s(2)
        cluster.host("gpu-b").cut("the connection was silent for too long")
        cluster.session.tick()
        cluster.clock.pass_s(12)
        cluster.host("gpu-a").hub.say(step(0, 40), step(1, 40))
        text = await shown(app, pilot)
        assert "○ live · 1 of 2 hosts" in text
        assert re.search(r"gpu-b  ○ lost since \S+ \(12 s\)  the connection was silent", text)
        assert "73.3 %" in line_of(text, "▸○")
        await shown(app, pilot, "slash", *"lost", "enter")
        assert table_rows(app) == ["gpu-b", 2, 3]
        assert "gpu-b lost since" in await shown(app, pilot, "enter")
        cluster.host("gpu-b").connect()
        assert "● live · 2 hosts" in await shown(app, pilot, "1")


# The hosts' own page


async def test_hosts_page_has_reasons_in_full_without_escapes():
    cluster = Cluster("gpu-a", "gpu-b")
    async with opened(cluster.live(), size=SIZES[2]) as (app, pilot):
        host = cluster.host("gpu-b")
        host.cut("its host key is another than before: if that is as it should be, ssh-keygen -R gpu-b")
        host.detail = "@@@ WARNING \x1b[2J\nREMOTE HOST IDENTIFICATION HAS CHANGED"
        cluster.clock.pass_s(70)
        text = await shown(app, pilot, "H") + await shown(app, pilot, *["down"] * 12)
        assert isinstance(app.screen, HostsScreen)
        await pilot.press("H")
        assert not isinstance(app.screen, HostsScreen)
    for words in (
        "gpu-b ○ lost since", "(1 m 10 s)",
        "if that is as it should be, ssh-keygen -R gpu-b", "@@@ WARNING ?[2J", "IDENTIFICATION HAS CHANGED",
    ):  # fmt: skip
        assert words in " ".join(text.split())
    assert "\x1b" not in text


async def test_hosts_that_are_down_can_be_tried_at_once():
    ours, theirs = socket.socketpair()
    connections = Mock(fileno=ours.fileno)
    app = app_of(Cluster("gpu-a").live(), connections=connections)
    with ours, theirs:
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.press("H", "r")
            connections.retry.assert_called_once_with()
            theirs.send(b"x")
            await pilot.pause(0.05)
            connections.receive.assert_called_with()


async def test_folders_of_a_capture_are_named_with_their_hosts():
    cluster, command = Cluster("gpu-a", "gpu-b"), commands.make(commands.CAPTURE, {"steps": 5})
    session = cluster.live()
    for rank, folder in enumerate(("/a", "/same", "/b", "/same")):
        written = (cluster.clock.at_ns + S, "written", 50, f"{folder}/rank{rank}.json.gz")
        cluster.hosts[rank // 2].hub.say(
            *[command] * (rank % 2 == 0), CommandReport(rank, command.id, command.name, *written)
        )
    async with opened(session) as (app, pilot):
        text = await shown(app, pilot, "5")
        for place in ("gpu-a:/a", "gpu-b:/b", "/same on gpu-a, gpu-b"):
            assert place in text
        await app.workers.wait_for_complete()
        assert "copy the traces here to compare" in await shown(app, pilot)
