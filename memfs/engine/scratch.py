"""Which names are temporary (SEMANTICS: Scratch files).

Programs save through temporary and lock files. Such a file stays in memory, in its attachment,
and is gone when the task ends; so a name that a person could choose for a note must not count.
"""

import os
import re
from dataclasses import dataclass, field
from fnmatch import translate

# Globs, case-sensitive, over one name: * ? [abc] [!abc].
PATTERNS = (
    "*~",  # backups of emacs, vim, nano
    ".*.sw?",  # vim swap files
    ".*.swpx",  # vim tries whether the file system is sane
    "4913",  # vim tries whether it may create files in the folder
    ".#*",  # emacs locks
    "#*#",  # emacs autosave
    ".tmp-*",
    "*.tmp",
    "*.tmp.*",
    ".fs-*.tmp",
    ".goutputstream-*",  # GIO: gedit, Nautilus
    ".nfs*",  # NFS's silly renames
    ".DS_Store",  # macOS Finder
    "._*",  # macOS resource forks
    "*.lock",
    ".~lock.*#",  # LibreOffice
    "*.part",  # downloads
    "*___jb_tmp___",  # JetBrains' safe write: the new text, and the old one until it is in place
    "*___jb_old___",
)

# What mkstemp makes of a template: a note could bear such a name ('sediments', '.notes.sqlite'),
# so these count only when the file was also created as mkstemp does.
MKSTEMP_PATTERNS = (
    "sed" + "[A-Za-z0-9]" * 6,  # sed -i
    "tmp" + "[a-z0-9_]" * 8,  # Python's tempfile
    ".*." + "[A-Za-z0-9]" * 6,  # rsync: .NAME.XXXXXX
    ".tmp" + "[A-Za-z0-9]" * 6,  # Rust's tempfile
)


def is_mkstemp(flags: int, mode: int) -> bool:
    """True if a file created with these open flags and this mode was created as mkstemp does.

    That is O_RDWR|O_EXCL and nobody else may read it: measured for glibc, sed 4, rsync 3 and
    Python's tempfile. O_EXCL alone says nothing: cp, mv, tar and a noclobber shell set it too
    (with O_WRONLY), and `cp sediments memory/` must make a note.
    """
    exclusive = bool(flags & os.O_EXCL) and flags & os.O_ACCMODE == os.O_RDWR
    return exclusive and not mode & 0o077


def is_temporary_for(name: str, target: str) -> bool:
    """True if *name* is one that a program makes of *target* to save it: it adds to it.

    `n.md.1234567890` (write-file-atomic), `n.md.XyzAbC` (QSaveFile), `n.md123456789` (Go),
    `.n.md.new`. A note may bear such a name; what counts is that it is renamed to *target*.
    """
    for start in (target, f".{target}"):
        if name.startswith(start) and name != target:
            rest = name.removeprefix(start)
            return not rest or rest.isdigit() or rest[0] in ".-_~"
    return False


@dataclass(frozen=True, slots=True)
class ScratchRules:
    """The temporary names of a mount. More patterns: `ScratchRules(PATTERNS + ("*.bak",))`."""

    patterns: tuple[str, ...] = PATTERNS
    mkstemp_patterns: tuple[str, ...] = MKSTEMP_PATTERNS
    _regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile all patterns to one expression; those that always count are tried first."""
        always = "|".join(map(translate, self.patterns)) or "(?!)"
        sometimes = "|".join(map(translate, self.mkstemp_patterns)) or "(?!)"
        regex = re.compile(f"(?:{always})|(?P<mkstemp>{sometimes})")
        object.__setattr__(self, "_regex", regex)

    def matches(self, name: str, exclusive: bool) -> bool:
        """True if *name* is temporary. exclusive: `is_mkstemp` of how it was created."""
        match = self._regex.match(name)
        return match is not None and (exclusive or match.lastgroup is None)
