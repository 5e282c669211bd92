"""Policy files: all of it or none of it, and the last good one kept."""

import logging
import os
from pathlib import Path

import pytest

from policies.files import END, Change, PolicyError, Reloading, Source, replace_file, whole_text

WHOLE = f"content\n{END}\n"


def test_a_whole_file_is_its_text() -> None:
    """A file with its end is taken as it stands, with either kind of newline."""
    assert whole_text(WHOLE.encode(), "f") == WHOLE
    assert whole_text(WHOLE.replace("\n", "\r\n").encode(), "f") == WHOLE.replace("\n", "\r\n")


def test_a_file_cut_at_any_byte_is_refused() -> None:
    """Every proper beginning of a file has lost its end."""
    data = f"a line with é\n{END}\n".encode()
    for size in range(len(data)):
        with pytest.raises(PolicyError):
            whole_text(data[:size], "f")


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"fine\nbad \xff byte\n", "f:2: byte 9 is not UTF-8"),
        (b"a\0b\n", "f:1:2: holds the unprintable U+0000"),
        (b"fine\nshown \rhidden\n", "f:2:7: holds the unprintable U+000D"),
        ("fine\nx \u202e y\n".encode(), "f:2:3: holds the unprintable U+202E"),
        ("a\u2028b\n".encode(), "f:1:2: holds the unprintable U+2028"),
        (b"\xef\xbb\xbfa\n", "f:1:1: holds the unprintable U+FEFF"),
        (f"{END} of all\n".encode(), "f:2: the last line is not"),
        (b"x" * (16 * 2**20 + 1), "f: has more than"),
    ],
)
def test_a_file_that_hides_something_is_refused(data: bytes, where: str) -> None:
    """What a reviewer cannot see is not policy; the error says where it stands."""
    with pytest.raises(PolicyError) as caught:
        whole_text(data, "f")
    assert str(caught.value).startswith(where)


def test_the_packaged_files_are_whole() -> None:
    """What ships with the package can be read from it, and is complete."""
    for name in ("model.conf", "policy.csv", "topics.toml"):
        source = Source.of(None, name)
        assert END in whole_text(source.read(), source.name)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    """The error names the file and the reason."""
    with pytest.raises(PolicyError, match=r"gone\.csv: cannot be read: No such file"):
        Source.of(tmp_path / "gone.csv", "policy.csv").read()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the old policy and half of the new one are never mixed."""
    path = tmp_path / "f"
    path.write_text(WHOLE)
    source = Source.of(path, "policy.csv")
    stamps = iter([(1, 1, 1), (2, 1, 1)])
    monkeypatch.setattr(Source, "stamp", lambda _: next(stamps))
    with pytest.raises(PolicyError, match="changed while it was read"):
        source.read()


def test_replacing_keeps_mode_and_link_and_leaves_no_litter(tmp_path: Path) -> None:
    """A file is replaced by rename: what a link points at changes, the link does not."""
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    before = real.stat().st_ino
    replace_file(link, "new")
    assert real.read_text() == "new"
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert real.stat().st_ino != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "real.csv"]


def test_a_replacement_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the rename has happened, the old policy is the policy."""
    path = tmp_path / "f"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        replace_file(path, "new")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("f", "old")]


class Number(Reloading[int]):
    """A file whose first line is a number."""

    def __init__(self, path: Path) -> None:
        source = Source.of(path, "policy.csv")
        super().__init__([source], lambda: int(whole_text(source.read(), source.name).split("\n")[0]))


def test_a_bad_first_load_raises(tmp_path: Path) -> None:
    """There is no last good policy to fall back to, so nothing starts."""
    path = tmp_path / "f"
    path.write_text("nonsense")
    with pytest.raises(PolicyError):
        Number(path)


def test_a_bad_reload_keeps_the_last_good_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Any error in a reload leaves what is in force, in `last_error`, in the log and with the listeners."""
    path = tmp_path / "f"
    path.write_text(f"1\n{END}\n")
    number = Number(path)
    changes: list[Change[int]] = []
    number.on_change(changes.append)
    for bad in (b"2\n", f"two\n{END}\n".encode(), b"\xff", b""):
        path.write_bytes(bad)
        with caplog.at_level(logging.ERROR):
            assert number.reload_if_changed() is False
        assert number.current == 1
        assert number.last_error is not None
        assert str(number.last_error) in caplog.text
        assert changes[-1].error is number.last_error
        assert number.reload_if_changed() is False, "the same bad file is not tried again"
    path.unlink()
    assert number.reload() is False
    path.write_text(f"3\n{END}\n")
    assert number.reload_if_changed() is True
    assert (number.current, number.last_error) == (3, None)
    assert (changes[-1].before, changes[-1].after, changes[-1].error) == (1, 3, None)
    assert len(changes) == 6


def test_an_untouched_file_is_not_read_again(tmp_path: Path) -> None:
    """Looking for a change costs a stat, not a read."""
    path = tmp_path / "f"
    path.write_text(f"1\n{END}\n")
    number = Number(path)
    assert number.changed() is False
    assert number.reload_if_changed() is False
    assert number.reload() is True
