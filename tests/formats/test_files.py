"""Which files are traces, and how much of them is read."""

import gzip
import os
import socket

import pytest

from overlaptop.formats import files
from overlaptop.formats.files import TraceError, find, read


def test_a_folder_holds_its_traces_by_name_and_nothing_else(tmp_path):
    with pytest.raises(TraceError, match=r"no trace in this folder.*\*\.json"):
        find(tmp_path)
    for name in ("rank1.json.gz", "rank0.json", "notes.txt", ".hidden.json", "trace.gz", "a.pt.trace.json"):
        (tmp_path / name).write_text("{}")
    assert [path.name for path in find(tmp_path)] == ["a.pt.trace.json", "rank0.json", "rank1.json.gz"]


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    fifo, listening = tmp_path / "a.json", tmp_path / "c.json"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        for path in (fifo, tmp_path, listening, "/dev/zero", "/dev/tty"):
            with pytest.raises(TraceError, match="not a regular file"):
                read(files.Path(path))


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "a.json").symlink_to("a.json")
    for name, words in (
        ("missing.json", "no such file or directory"),
        ("a.json", "too many levels of symbolic links"),
    ):
        with pytest.raises(TraceError, match=words):
            find(tmp_path / name)
    path = tmp_path / "trace.json"
    path.write_text("{}")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.Path, "open", refused)  # root may read everything, and tests run as root
    with pytest.raises(TraceError, match=r"trace\.json: permission denied"):
        read(path)


WHOLE = gzip.compress(b"{" + os.urandom(1000).hex().encode())
NO_OBJECT = "does not begin with a JSON object"
CUT_OFF = "cut off: it ends in the middle of the gzip stream"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", NO_OBJECT, id="nothing"),
        pytest.param(b" [1, 2]", NO_OBJECT, id="a list"),
        pytest.param(b" " * (2 << 20), NO_OBJECT, id="blanks"),
        pytest.param(gzip.compress(b""), NO_OBJECT, id="nothing packed"),
        pytest.param(gzip.compress(bytes(4 << 20)), NO_OBJECT, id="zeros packed"),
        pytest.param(b'{"a": [' + bytes(4096), "not JSON: only zeros from byte 7 on", id="zeros"),
        pytest.param(WHOLE[:2], CUT_OFF, id="begun"),
        pytest.param(WHOLE[:-1], CUT_OFF, id="one byte short"),
        pytest.param(
            WHOLE[:-6] + bytes([WHOLE[-6] ^ 1]) + WHOLE[-5:], "not sound gzip", id="a flipped bit"
        ),
        pytest.param(WHOLE + b"more", "not sound gzip", id="two"),
    ],
)
def test_what_is_no_whole_object_is_refused_as_such(tmp_path, content, words):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read(path)


@pytest.mark.parametrize("pack", [bytes, lambda text: gzip.compress(text) + b"\0\0"], ids=["plain", "gzip"])
def test_texts_up_to_the_limit_come_back_whole_and_longer_ones_do_not(tmp_path, monkeypatch, pack):
    """Gzip is known by its content, also if it is padded, as on a tape."""
    path, text = tmp_path / "anything", b" {" + os.urandom(1 << 20).hex().encode()
    path.write_bytes(pack(b"\xef\xbb\xbf" + text))  # a byte order mark
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", len(text))
    assert find(path) == [path]
    assert read(path) == text
    path.write_bytes(pack(text + b" "))
    with pytest.raises(TraceError, match="larger than 1 GiB unpacked"):
        read(path)
