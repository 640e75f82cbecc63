"""The key of --gather: where it comes from, and when it is refused."""

import stat

import pytest

from overlaptop.jobs.gather_key import VARIABLE, GatherError, key_path, make_key, read_key


@pytest.fixture(autouse=True)
def config(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def refusal():
    with pytest.raises(GatherError) as refused:
        read_key()
    return str(refused.value)


def test_a_made_key_is_for_its_owner_alone():
    path = make_key()
    assert (path, stat.S_IMODE(path.stat().st_mode), len(read_key())) == (key_path(), 0o600, 32)


def test_the_variable_replaces_the_file(monkeypatch):
    make_key()
    monkeypatch.setenv(VARIABLE, f"{'0f' * 32}\n")
    assert read_key() == b"\x0f" * 32


@pytest.mark.parametrize("text", ["", "0f", "x" * 64, "0f" * 33])
def test_what_is_no_key_is_refused(monkeypatch, text):
    make_key().write_text(text)
    assert refusal() == f"{key_path()} holds no key: 64 hexadecimal digits are expected"
    monkeypatch.setenv(VARIABLE, text)
    assert refusal() == f"${VARIABLE} holds no key: 64 hexadecimal digits are expected"


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_file_that_is_open_to_others_is_refused(mode):
    make_key().chmod(mode)
    assert refusal().startswith(f"{key_path()} is open to others")


def test_a_link_is_refused():
    path = make_key()
    path.symlink_to(path.rename(path.with_name("elsewhere")))
    assert refusal().startswith(f"cannot read {path}: ")


def test_a_missing_key_names_the_command():
    assert refusal() == f"no key: run `overlaptop key`, which writes {key_path()}, or set {VARIABLE}"
