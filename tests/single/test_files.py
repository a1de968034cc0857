"""A file that atomic_write makes is there whole or not at all."""

import os

import pytest

from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write, make_folder


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def write_half_a_file(target, interruption):
    with atomic_write(target) as file:
        file.write("half of the n")
        raise interruption


def test_the_file_appears_only_at_the_end_of_the_block(tmp_path):
    target = tmp_path / "manifest.csv"
    with atomic_write(target) as file:
        file.write("a,b\n")
        assert not target.exists()
    assert target.read_bytes() == b"a,b\n"
    assert names_in(tmp_path) == ["manifest.csv"]


def test_bytes_can_be_written(tmp_path):
    with atomic_write(tmp_path / "sound.wav", "wb") as file:
        file.write(b"\x00\xff")
    assert (tmp_path / "sound.wav").read_bytes() == b"\x00\xff"


@pytest.mark.parametrize("interruption", [ValueError, KeyboardInterrupt])
def test_an_error_or_ctrl_c_leaves_the_old_file_and_nothing_else(tmp_path, interruption):
    target = tmp_path / "config.json"
    target.write_text("old")
    with pytest.raises(interruption):
        write_half_a_file(target, interruption)
    assert target.read_text() == "old"
    assert names_in(tmp_path) == ["config.json"]


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    with pytest.raises(UserError, match=r"config\.json: No space left"), atomic_write(tmp_path / "config.json"):
        raise OSError(28, "No space left on device")
    assert names_in(tmp_path) == []


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "device")
    with (
        pytest.raises(UserError, match="device: it is there and is not a regular file"),
        atomic_write(tmp_path / "device") as file,
    ):
        file.write("content")
    assert (tmp_path / "device").is_fifo()
    assert names_in(tmp_path) == ["device"]


def test_a_path_below_a_file_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Not a directory"), atomic_write(tmp_path / "file" / "new.txt"):
        pass
    with pytest.raises(UserError, match=r"cannot make the folder .*file/new: Not a directory"):
        make_folder(tmp_path / "file" / "new")


def test_make_folder_makes_parents_and_accepts_what_is_there(tmp_path):
    assert make_folder(tmp_path / "a" / "b").is_dir()
    assert make_folder(tmp_path / "a" / "b").is_dir()
