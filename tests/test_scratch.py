import os
import tempfile
from pathlib import Path

import pytest

from memfs.engine.scratch import (
    MKSTEMP_PATTERNS,
    PATTERNS,
    ScratchRules,
    is_mkstemp,
    is_temporary_for,
)

RULES = ScratchRules()

SCRATCH = [
    "notes.md~",
    ".notes.md.swp",
    ".notes.md.swo",
    ".notes.md.swpx",
    "4913",
    ".#notes.md",
    "#notes.md#",
    ".tmp-1234",
    "notes.tmp",
    "notes.md.tmp.4711",
    ".fs-01HZ.tmp",
    ".goutputstream-A1B2C3",
    ".nfs000000000123",
    ".DS_Store",
    "._notes.md",
    "notes.lock",
    ".~lock.notes.odt#",
    "notes.part",
    "größe\u00a0.md~",
]
MKSTEMP = [
    "sedA1b2C3",
    "sediments",
    "tmpabc_1234",
    "tmpdocument",
    ".notes.md.UehL1s",
    ".notes.sqlite",
    ".bashrc.a1B2c3",
]
NOTES = [
    "notes.md",
    "4913.md",
    "swp",
    "notes.swp",
    "tmp",
    "tmp-1234",
    "sed",
    "sedimentary",
    "sed notes",
    "tmpResults",
    "temporary.md",
    "notes.tmpl",
    "lock",
    "partner.md",
    "#hash",
    "#hash#.md",
    "~notes",
    ".config.backups",
    ".gitignore",
    ".DS_Store.md",
    "_.md",
    "notes.UehL1s",
]


@pytest.mark.parametrize("name", SCRATCH)
def test_temporary_name_always_counts(name: str) -> None:
    assert RULES.matches(name, exclusive=False)
    assert RULES.matches(name, exclusive=True)


@pytest.mark.parametrize("name", MKSTEMP)
def test_mkstemp_name_counts_only_as_mkstemp_makes_it(name: str) -> None:
    assert RULES.matches(name, exclusive=True)
    assert not RULES.matches(name, exclusive=False)


@pytest.mark.parametrize(
    "name",
    ["n.md.1234567890", "n.md.XyzAbC", "n.md123456789", ".n.md1", ".n.md.new", ".n.md", "n.md-new"],
)
def test_name_that_adds_to_a_targets_is_temporary_for_it(name: str) -> None:
    assert is_temporary_for(name, "n.md")
    assert is_temporary_for(f".{name}", ".n.md") or name.startswith(".")


@pytest.mark.parametrize("name", ["n.md", "n.mdx", "m.md", "an.md", "n", "draft-n.md", ".m.md", ""])
def test_other_names_are_not_temporary_for_it(name: str) -> None:
    assert not is_temporary_for(name, "n.md")


@pytest.mark.parametrize("name", NOTES)
def test_name_of_a_note_never_counts(name: str) -> None:
    assert not RULES.matches(name, exclusive=False)
    assert not RULES.matches(name, exclusive=True)


def test_name_that_matches_both_ways_always_counts() -> None:
    assert RULES.matches(".notes.md.tmp.123456", exclusive=False)


def test_more_patterns_can_be_given() -> None:
    rules = ScratchRules((*PATTERNS, "*.bak", "[ab]?.x"))
    assert rules.matches("notes.bak", exclusive=False)
    assert rules.matches("a1.x", exclusive=False)
    assert not rules.matches("c1.x", exclusive=False)
    assert rules.matches("notes.md~", exclusive=False)


def test_no_patterns_match_nothing() -> None:
    rules = ScratchRules((), ())
    assert not any(rules.matches(name, exclusive=True) for name in (*SCRATCH, *MKSTEMP, ""))


def test_rules_are_values() -> None:
    assert ScratchRules() == ScratchRules(PATTERNS, MKSTEMP_PATTERNS)
    assert len({ScratchRules(), ScratchRules(PATTERNS), ScratchRules(("*.x",))}) == 2


def test_only_what_mkstemp_asks_for_is_mkstemp() -> None:
    assert is_mkstemp(os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o100600)
    assert is_mkstemp(os.O_RDWR | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o700)
    assert not is_mkstemp(os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # cp, mv, tar
    assert not is_mkstemp(os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    assert not is_mkstemp(os.O_RDWR | os.O_CREAT, 0o600)


def test_python_makes_names_that_count(tmp_path: Path) -> None:
    for _ in range(20):
        handle, name = tempfile.mkstemp(dir=tmp_path)
        os.close(handle)
        assert RULES.matches(Path(name).name, exclusive=True)
