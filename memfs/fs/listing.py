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

    __slots__ = ("ahead", "ahead_seq", "control", "inode", "last", "names", "positions", "read")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.control: list[tuple[str, bool]] | None = None  # .memfs: name, is a folder
        self.last = ""  # the name given out last
        self.ahead: list[NodeInfo] = []  # what comes after it, last first, as of ahead_seq
        self.ahead_seq = Seq(0)
        self.read: list[NodeInfo] | None = None  # all of a first pass, as of ahead_seq
        self.names: list[str] = []  # by position
        self.positions: dict[str, int] | None = None  # None in the first pass: it is the order

    def rewind(self) -> None:
        """Begin anew. Positions stay good, unless a handle kept for years has seen too many."""
        if len(self.names) > _KEPT:
            self.names.clear()
            self.positions = None
        if self.names:
            self.look_up()

    def look_up(self) -> None:
        """From now on names may come that were given out before."""
        if self.positions is None:
            self.positions = {name: at for at, name in enumerate(self.names, DOTS + 1)}

    def position(self, name: str) -> int:
        """Return the position that a name has, or gets by `gave`."""
        known = None if self.positions is None else self.positions.get(name)
        return len(self.names) + DOTS + 1 if known is None else known

    def gave(self, name: str) -> None:
        """Note that a name was given out; it keeps its position."""
        self.last = name
        if self.positions is None:
            self.names.append(name)
        elif name not in self.positions:
            self.names.append(name)
            self.positions[name] = len(self.names) + DOTS

    def name_at(self, position: int) -> str | None:
        """Return the name that a position is behind, "" for the dots; None: never given out."""
        if position <= DOTS:
            return ""
        index = position - DOTS - 1
        return self.names[index] if index < len(self.names) else None
