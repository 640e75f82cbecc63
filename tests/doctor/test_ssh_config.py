"""What ``ssh -G`` prints, of several versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlaptop.doctor.ssh_config import SshConfig

PLAIN = "host gpu-a\nuser me\nhostname 10.0.0.5\nport 22\ncontrolmaster false\nproxyjump none\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLAIN, "me@10.0.0.5 port 22"),
        (PLAIN.replace("proxyjump none", "proxyjump login"), "me@10.0.0.5 port 22, by login"),
        (PLAIN + "proxycommand nc %h %p\n", "me@10.0.0.5 port 22, by a ProxyCommand"),
        (
            PLAIN.replace("controlmaster false", "controlmaster auto\ncontrolpath /run/%C"),
            "me@10.0.0.5 port 22, shared by all connections (ControlMaster)",
        ),
        # Without a path nothing is shared, whatever ControlMaster says.
        (PLAIN.replace("controlmaster false", "controlmaster auto"), "me@10.0.0.5 port 22"),
    ],
)
def test_the_route_to_a_host_is_described(text: str, words: str) -> None:
    assert str(SshConfig.parse(text)) == words


def test_a_missing_folder_for_shared_connections_is_found(tmp_path: Path) -> None:
    def config(path: Path) -> SshConfig:
        return SshConfig.parse(f"controlmaster auto\ncontrolpath {path}\n")

    assert config(tmp_path / "%C").missing_control_folder is None
    assert config(tmp_path / "nothere" / "%C").missing_control_folder == tmp_path / "nothere"
    # Another one for each host: it cannot be known here.
    assert config(tmp_path / "%h" / "%C").missing_control_folder is None
    assert SshConfig.parse("controlmaster no\ncontrolpath /nothere/%C").missing_control_folder is None


def test_what_is_not_understood_is_passed_over() -> None:
    config = SshConfig.parse("\n \nnonsense\n\x1b[31m\nUser me\nhostname h\nuser you\nport 1\n")
    assert str(config) == "me@h port 1"
