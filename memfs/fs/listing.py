"""One open folder, and what its positions mean (SEMANTICS: Mount, readdir)."""

from memfs.fs.inodes import Inode
from memfs.types import NodeInfo, Seq

DOTS = 2  # positions 1 and 2 are behind `.` and `..`
_KEPT = 65_536  # names that a handle remembers before a rewind makes it forget


class Listing:
    """Positions of one open folder.

    A program may keep a position (telldir) and come back to it (seekdir), also after it has
    rewound. So a name has one position for as long as the folder is open, and what follows a
    position is what sorts behind that name, whatever came and went.
    """

    __slots__ = ("_names", "_positions", "ahead", "ahead_seq", "control", "inode", "last")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.control: list[tuple[str, bool]] | None = None  # .memfs: name, is a folder
        self.last = ""  # the name given out last
        self.ahead: list[NodeInfo] = []  # what comes after it, last first, as of ahead_seq
        self.ahead_seq = Seq(0)
        self._names: list[str] = []  # by position
        self._positions: dict[str, int] = {}

    def rewind(self) -> None:
        """Begin anew. Positions stay good, unless a handle kept for years has seen too many."""
        if len(self._names) > _KEPT:
            self._names.clear()
            self._positions.clear()

    def position(self, name: str) -> int:
        """Return the position behind a name, which it keeps."""
        position = self._positions.get(name)
        if position is None:
            self._names.append(name)
            position = self._positions[name] = len(self._names) + DOTS
        return position

    def name_at(self, position: int) -> str | None:
        """Return the name that a position is behind, "" for the dots; None: never given out."""
        if position <= DOTS:
            return ""
        index = position - DOTS - 1
        return self._names[index] if index < len(self._names) else None
