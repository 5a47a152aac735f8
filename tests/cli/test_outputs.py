"""What is judged before a command works for minutes, and then cannot write what it found."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.cli.outputs import require_file, require_folder
from serve_app.sim.tables import BadInput


def test_files_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.json").write_text("{}")
    for path in (tmp_path / "new.json", tmp_path / "old.json", Path("here.json")):
        require_file("--json", path)
    assert {path.name for path in tmp_path.iterdir()} == {"old.json"}
    for folder in (tmp_path, tmp_path / "a" / "b", Path("here")):
        require_folder("--plots", folder)
    assert {path.name for path in tmp_path.iterdir()} == {"old.json"}


@pytest.mark.parametrize(("path", "reason"), [("none/x.json", "there is no folder"), ("folder", "it is a folder")])
def test_files_that_cannot(path: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match=f"^--json: .*{reason}.*; give another file$"):
        require_file("--json", tmp_path / path)


@pytest.mark.parametrize("path", ["file", "file/plots", "file/more/plots"])
def test_folders_that_cannot(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"^--plots: .*file is a file\); give another folder$"):
        require_folder("--plots", tmp_path / path)


def test_what_this_user_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(BadInput, match="this user may not"):
        require_file("--json", tmp_path / "x")
    with pytest.raises(BadInput, match="this user may not"):
        require_folder("--plots", tmp_path / "x")
