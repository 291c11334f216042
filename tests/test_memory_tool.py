"""The official anthropic SDK's file memory tool, unmodified, on a mounted store (issue 2: Show)."""

import os
from pathlib import Path

import pytest
from anthropic.lib.tools import ToolError
from anthropic.tools import BetaLocalFilesystemMemoryTool
from anthropic.types.beta import (
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)

from tests.mount import Api, names, note_id

pytest_plugins = ("tests.mount",)
pytestmark = pytest.mark.fuse

NOTE = "/memories/notes/plan.md"


class Tool:
    """The tool, by its commands' names."""

    def __init__(self, root: Path) -> None:
        self._tool = BetaLocalFilesystemMemoryTool(str(root))

    def view(self, path: str, **rest) -> str:
        return self._tool.view(BetaMemoryTool20250818ViewCommand(command="view", path=path, **rest))

    def create(self, path: str, text: str) -> str:
        return self._tool.create(
            BetaMemoryTool20250818CreateCommand(command="create", path=path, file_text=text)
        )

    def str_replace(self, path: str, old: str, new: str) -> str:
        return self._tool.str_replace(
            BetaMemoryTool20250818StrReplaceCommand(
                command="str_replace", path=path, old_str=old, new_str=new
            )
        )

    def insert(self, path: str, line: int, text: str) -> str:
        return self._tool.insert(
            BetaMemoryTool20250818InsertCommand(
                command="insert", path=path, insert_line=line, insert_text=text
            )
        )

    def rename(self, old: str, new: str) -> str:
        return self._tool.rename(
            BetaMemoryTool20250818RenameCommand(command="rename", old_path=old, new_path=new)
        )

    def delete(self, path: str) -> str:
        return self._tool.delete(BetaMemoryTool20250818DeleteCommand(command="delete", path=path))


@pytest.fixture
def tool(S: Path) -> Tool:
    return Tool(S)


def test_create_and_view(tool: Tool, S: Path, T: Path, api: Api):
    tool.create(NOTE, "one\ntwo\n")
    assert "two" in tool.view(NOTE)
    assert "one" not in tool.view(NOTE, view_range=[2, 2])
    assert "notes/plan.md" in tool.view("/memories")
    assert api.history(NOTE) == [("created", "one\ntwo\n")]
    assert (T / "memories" / "notes" / "plan.md").read_text() == "one\ntwo\n"


def test_create_does_not_overwrite(tool: Tool, api: Api):
    tool.create(NOTE, "one\n")
    with pytest.raises(ToolError, match="already exists"):
        tool.create(NOTE, "two\n")
    assert api.history(NOTE) == [("created", "one\n")]


def test_ten_str_replace_saves_leave_one_note_with_eleven_versions(tool, S, T, api):
    tool.create(NOTE, "step 0\n")
    before = api.note_id(NOTE)
    for number in range(10):
        tool.str_replace(NOTE, f"step {number}", f"step {number + 1}")
    assert api.note_id(NOTE) == before
    assert api.history(NOTE) == [
        ("created", "step 0\n"),
        *(("modified", f"step {number}\n") for number in range(1, 11)),
    ]
    assert len(api.all_versions()) == 11, "no trace of temporary names"
    assert {version["path"] for version in api.all_versions()} == {NOTE}
    assert names(S / "memories" / "notes") == names(T / "memories" / "notes") == ["plan.md"]
    assert names(S / ".memfs" / "versions" / "memories" / "notes") == ["plan.md"]


def test_insert(tool: Tool, api: Api):
    tool.create(NOTE, "one\nthree\n")
    tool.insert(NOTE, 1, "two\n")
    tool.insert(NOTE, 0, "zero")
    assert api.get(NOTE) == "zero\none\ntwo\nthree\n"
    assert len(api.versions(NOTE)) == 3


def test_rename_keeps_the_note(tool: Tool, S: Path, T: Path, api: Api):
    tool.create(NOTE, "text\n")
    before = api.note_id(NOTE)
    tool.rename(NOTE, "/memories/archive/old.md")
    assert note_id(T / "memories" / "archive" / "old.md") == before
    assert [version["path"] for version in api.versions(before)] == [
        NOTE,
        "/memories/archive/old.md",
    ]
    tool.rename("/memories/archive", "/memories/kept")
    assert api.ls() == ["/memories/kept/old.md"]
    with pytest.raises(ToolError):
        tool.rename("/memories/none", "/memories/some")


def test_delete_a_note_and_a_folder(tool: Tool, S: Path, T: Path, api: Api):
    tool.create(NOTE, "text\n")
    tool.create("/memories/notes/other.md", "text\n")
    before = api.note_id(NOTE)
    tool.delete(NOTE)
    assert api.versions(before)[-1]["operation"] == "deleted"
    tool.delete("/memories/notes")
    assert api.ls() == []
    assert names(T / "memories") == []
    with pytest.raises(ToolError, match="does not exist"):
        tool.view(NOTE)


def test_two_tasks_with_the_tool_see_each_others_edits(tool: Tool, T: Path, api: Api):
    other = Tool(T)
    tool.create(NOTE, "a b\n")
    other.str_replace(NOTE, "a", "A")
    tool.str_replace(NOTE, "b", "B")
    assert "A B" in other.view(NOTE)
    assert len(api.versions(NOTE)) == 3


def test_an_edit_of_what_the_api_changed_starts_from_the_new_text(tool: Tool, api: Api):
    tool.create(NOTE, "a b\n")
    tool.view(NOTE)
    api.put(NOTE, "a b c\n")
    tool.str_replace(NOTE, "b", "B")
    assert api.get(NOTE) == "a B c\n"


def test_a_text_that_is_refused_leaves_the_note_as_it_was(tool: Tool, S: Path, api: Api):
    tool.create(NOTE, "a\n")
    with pytest.raises(OSError, match="File too large"):
        tool.str_replace(NOTE, "a", "x" * 200_000)
    assert api.history(NOTE) == [("created", "a\n")]
    assert names(S / "memories" / "notes") == ["plan.md"]
    assert os.listdir(S) == ["memories"]
