"""Spending in a file that is torn, shared, full and read again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.private_files import NotPrivate
from serve_app.spending import FILE_NAME, SpendingFile

#: 2026-01-05 22:00:00 UTC, two hours before midnight.
EVENING = 1_767_650_400.0
HOUR = 3600.0


class Clock:
    now = EVENING

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spending(tmp_path: Path, clock: Clock) -> Iterator[SpendingFile]:
    with closing(SpendingFile(tmp_path / "spent", clock)) as file:
        yield file


def lines(tmp_path: Path) -> bytes:
    return (tmp_path / "spent" / FILE_NAME).read_bytes()


def total(folder: Path, key: str = "alice") -> float:
    with closing(SpendingFile(folder, Clock())) as again:
        return again.spent(key).total


def test_nothing_is_spent_at_first(spending: SpendingFile) -> None:
    spent = spending.spent("alice")
    assert (spent.total, spent.today, spent.until_tomorrow) == (0.0, 0.0, 2 * HOUR)


def test_each_key_has_its_own_sum_and_each_day_in_utc(spending: SpendingFile, clock: Clock) -> None:
    spending.add("alice", 0.25)
    spending.add("bob", 4.0)
    spending.add("alice", 0.5)
    assert (spending.spent("alice").total, spending.spent("alice").today) == (0.75, 0.75)

    clock.now += 2 * HOUR
    spending.add("alice", 0.125)
    spent = spending.spent("alice")
    assert (spent.total, spent.today, spent.until_tomorrow) == (0.875, 0.125, 24 * HOUR)
    assert spending.spent("bob").total == 4.0


def test_it_outlives_a_restart(spending: SpendingFile, tmp_path: Path) -> None:
    spending.add("alice", 0.25)
    spending.add("alice", 0.5)
    assert total(tmp_path / "spent") == 0.75


def test_it_holds_names_days_and_sums_and_strangers_cannot_read_it(spending: SpendingFile, tmp_path: Path) -> None:
    spending.add("alice", 0.25)
    (line,) = lines(tmp_path).splitlines()
    assert json.loads(line) == {"day": "2026-01-05", "key": "alice", "usd": 0.25}
    folder = tmp_path / "spent"
    assert (folder.stat().st_mode & 0o777, (folder / FILE_NAME).stat().st_mode & 0o777) == (0o700, 0o600)


def test_wherever_the_last_line_is_torn_the_others_count_and_the_next_one_too(
    spending: SpendingFile, tmp_path: Path
) -> None:
    spending.add("alice", 0.25)
    first = len(lines(tmp_path))
    spending.add("alice", 0.5)
    whole = lines(tmp_path)
    for cut in range(first, len(whole)):
        folder = tmp_path / f"cut-{cut}"
        folder.mkdir(mode=0o700)
        (folder / FILE_NAME).touch(0o600)
        (folder / FILE_NAME).write_bytes(whole[:cut])
        with closing(SpendingFile(folder, Clock())) as again:
            assert again.spent("alice").total == 0.25
            again.add("alice", 1.0)
            assert again.spent("alice").total >= 1.25
            assert total(folder) == again.spent("alice").total


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()) | st.builds(
    lambda day, key, usd: json.dumps({"day": day, "key": key, "usd": usd}).encode(), JSON, st.just("bob"), JSON
))  # fmt: skip
def test_no_line_hides_those_around_it(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("junk", numbered=True)
    line = b'{"day": "2026-01-05", "key": "alice", "usd": 0.25}\n'
    (folder / FILE_NAME).touch(0o600)
    (folder / FILE_NAME).write_bytes(line + junk + b"\n" + line)
    with closing(SpendingFile(folder, Clock())) as file:
        assert file.spent("alice").total == 0.5
        assert 0 <= file.spent("bob").total < float("inf")


def test_routers_that_share_the_folder_share_the_budget(spending: SpendingFile, tmp_path: Path, clock: Clock) -> None:
    with closing(SpendingFile(tmp_path / "spent", clock)) as other:
        for _ in range(3):
            spending.add("alice", 0.25)
            other.add("alice", 0.5)
        assert spending.spent("alice") == other.spent("alice")
        assert other.spent("alice").total == 2.25


def test_a_line_that_another_router_is_still_writing_counts_once_it_is_whole(
    spending: SpendingFile, tmp_path: Path
) -> None:
    spending.add("alice", 0.25)
    with open(tmp_path / "spent" / FILE_NAME, "ab", buffering=0) as other:
        other.write(b'{"day": "2026-01-05", "key": "ali')
        assert spending.spent("alice").total == 0.25
        other.write(b'ce", "usd": 0.5}\n')
        assert spending.spent("alice").total == 0.75


@pytest.mark.parametrize("taken", [0, 10])
def test_what_a_full_disk_does_not_take_counts_and_is_written_later(
    spending: SpendingFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    write = os.write

    def full(file: int, data: bytes) -> int:
        if not taken:
            raise OSError(28, "No space left on device")
        return write(file, data[:taken])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        spending.add("alice", 0.25)
        spending.add("alice", 0.5)
        assert (spending.spent("alice").total, spending.spent("alice").today) == (0.75, 0.75)
    assert total(tmp_path / "spent") == 0.0
    spending.add("bob", 1.0)
    assert spending.spent("alice").total == 0.75
    assert (total(tmp_path / "spent"), total(tmp_path / "spent", "bob")) == (0.75, 1.0)


def test_what_is_added_after_the_end_is_written_nowhere(tmp_path: Path, clock: Clock) -> None:
    spending = SpendingFile(tmp_path, clock)
    spending.add("alice", 0.25)
    spending.close()
    with open(tmp_path / "another", "w+b", buffering=0) as reuses_its_number:
        spending.add("alice", 0.5)
        assert reuses_its_number.read() == b""
    assert total(tmp_path) == 0.25


def test_where_others_could_change_it_nothing_is_written(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(NotPrivate):
        SpendingFile(open_folder)

    (tmp_path / FILE_NAME).touch()
    (tmp_path / FILE_NAME).chmod(0o666)
    with pytest.raises(NotPrivate):
        SpendingFile(tmp_path)

    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / FILE_NAME).symlink_to(tmp_path / FILE_NAME)
    with pytest.raises(OSError, match="symbolic link"):
        SpendingFile(tmp_path / "linked")
