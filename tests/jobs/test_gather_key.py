"""The key of --gather: where it comes from, and when it is refused."""

import re
import stat
from pathlib import Path

import pytest

from overlaptop.jobs.gather_key import VARIABLE, GatherError, key_path, make_key, read_key


@pytest.fixture(autouse=True)
def config(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_made_key_is_for_its_owner_alone_unless_the_variable_has_one(monkeypatch):
    path = make_key()
    assert (path, stat.S_IMODE(path.stat().st_mode), len(read_key())) == (key_path(), 0o600, 32)
    monkeypatch.setenv(VARIABLE, f"{'0f' * 32}\n")
    assert read_key() == b"\x0f" * 32


@pytest.mark.parametrize("text", ["", "0f", "x" * 64, "0f" * 33])
def test_what_is_no_key_is_refused(monkeypatch, text):
    make_key().write_text(text)
    for place in (key_path(), f"${VARIABLE}"):
        with pytest.raises(GatherError, match=re.escape(f"{place} holds no key: 64 hexadecimal digits")):
            read_key()
        monkeypatch.setenv(VARIABLE, text)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.chmod(0o640), "{path} is open to others"),
        (lambda path: path.symlink_to(path.rename(path.with_name("elsewhere"))), "cannot read {path}: "),
        (Path.unlink, f"no key: run `overlaptop key`, which writes {{path}}, or set {VARIABLE}"),
    ],
)
def test_a_key_file_that_cannot_be_trusted_is_refused(spoil, why):
    spoil(make_key())
    with pytest.raises(GatherError, match=re.escape(why.format(path=key_path()))):
        read_key()
