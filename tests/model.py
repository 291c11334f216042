"""What the engine should do, in plain dictionaries; tests compare the two.

Written from DESIGN §3 and §5 and not from the engine: of it, only the rules for names are used.
A tree is one dictionary from a path's segments to the folder or note there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from memfs import limits
from memfs.engine import path as paths
from memfs.errors import (
    Conflict,
    FolderNotEmpty,
    Invalid,
    InvalidPath,
    IsAFolder,
    LimitReached,
    NameTooLong,
    NotAFolder,
    NotFound,
    PathConflict,
    PreconditionFailed,
    SecretRefused,
    StoreArchived,
    TextTooLong,
)
from memfs.types import Actor

Path = tuple[str, ...]

KEPT_OF_LIVING = 2
FOLDER_MODE, NOTE_MODE = 0o755, 0o644


@dataclass(eq=False, repr=False)
class Version:
    note: "Note"
    operation: str
    ordinal: int
    path: str | None
    text: bytes | None
    at: int
    actor: Actor
    is_redacted: bool = False
    id: str = ""  # the engine's, once the test knows it


@dataclass(eq=False, repr=False)
class Note:
    store: "Store"
    path: Path
    text: bytes
    mode: int
    mtime: int
    created_at: int
    updated_at: int
    ordinal: int = 0
    is_archived: bool = False
    is_gone: bool = False  # deleted: it has a history and no place
    id: str = ""
    node: int = 0

    @property
    def where(self) -> str:
        return spelled(self.path)


@dataclass(eq=False, repr=False)
class Folder:
    store: "Store"
    path: Path
    mode: int = FOLDER_MODE
    is_kept: bool = False
    is_gone: bool = False
    node: int = 0


@dataclass(eq=False, repr=False)
class Refused:
    n: int
    path: str
    text: bytes


@dataclass(eq=False, repr=False)
class Store:
    name: str
    is_own: bool = False
    is_archived: bool = False
    is_gone: bool = False
    tree: dict[Path, Folder | Note] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    archived: list[Note] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    refused_before: int = 0
    id: str = ""
    no: int = 0

    def notes(self) -> Iterator[Note]:
        return (each for each in self.tree.values() if isinstance(each, Note))

    def below(self, path: Path) -> list[Path]:
        """The paths strictly below one, depth first in byte order of names."""
        found = [each for each in self.tree if len(each) > len(path) and starts(each, path)]
        return sorted(found, key=lambda each: [name.encode() for name in each])


@dataclass(frozen=True)
class Save:
    text: bytes
    base: bytes | None
    tail: bytes | None
    mode: int
    mtime: int


def starts(path: Path, top: Path) -> bool:
    return path[: len(top)] == top


def spelled(path: Path) -> str:
    return "/" + "/".join(path)


class Model:
    """The workspace. The test sets `now` and `actor` before each call."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.now = 0
        self.actor = Actor("user_actor", "user")
        self.stores: list[Store] = []
        self.folders: list[Folder] = []  # also those that are gone
        self.notes: list[Note] = []

    # ----------------------------------------------------------------------------------- stores

    def create_store(self, name: str, *, own: bool = False) -> Store:
        if not 1 <= len(name) <= limits.STORE_NAME_CHARS or "\n" in name:
            raise Invalid
        live = [s for s in self.stores if not (s.is_own or s.is_archived or s.is_gone)]
        if not own and len(live) >= limits.LIVE_SHARED_STORES:
            raise LimitReached
        store = Store(name, is_own=own)
        store.tree[()] = self._folder(store, (), is_kept=True)
        self.stores.append(store)
        return store

    def rename_store(self, store: Store, name: str) -> Store:
        self._live(store)
        if not 1 <= len(name) <= limits.STORE_NAME_CHARS or "\n" in name:
            raise Invalid
        store.name = name
        return store

    def archive_store(self, store: Store) -> Store:
        self._exists(store)
        if not store.is_archived:
            if store.is_own:
                raise Conflict
            store.is_archived = True
        return store

    def delete_store(self, store: Store) -> None:
        self._exists(store)
        if store.is_own:
            raise Conflict
        for each in (*store.tree.values(), *store.archived):
            each.is_gone = True
        store.is_gone = True
        store.versions, store.refused, store.tree, store.archived = [], [], {}, []

    # ------------------------------------------------------------------------- notes by the API

    def create(self, store: Store, path: Path, text: bytes) -> Note:
        self._live(store)
        self._check_free(store, path)
        self._check_room(store)
        parent = self._make_way(store, path)
        return self._place(parent, path[-1], text, NOTE_MODE, self.now)

    def update(
        self, note: Note, text: bytes | None, path: Path | None, expected: bytes | None
    ) -> Note:
        self._there(note)
        self._live(note.store)
        if note.is_archived:
            raise Invalid
        if text in (None, note.text) and path in (None, note.path):
            return note
        self._check_expected(note, expected)
        old = note.path
        if path is not None and path != old:
            self._check_free(note.store, path)
            del note.store.tree[old]
            self._make_way(note.store, path)
            note.path = path
            note.store.tree[path] = note
        if text is not None:
            note.text, note.mtime = text, self.now
        self._version(note, "modified")
        self._prune(note.store, old[:-1])
        return note

    def delete(self, note: Note, expected: bytes | None) -> None:
        self._there(note)
        self._check_expected(note, expected)
        was_archived = note.is_archived
        self._end(note)
        if not was_archived:
            self._prune(note.store, note.path[:-1])

    def archive(self, note: Note, reason: str) -> Note:
        self._there(note)
        self._live(note.store)
        if not 1 <= len(reason) <= 500:
            raise Invalid
        if not note.is_archived:
            del note.store.tree[note.path]
            note.store.archived.append(note)
            note.is_archived = True
            self._prune(note.store, note.path[:-1])
        return note

    def unarchive(self, note: Note) -> Note:
        self._there(note)
        self._live(note.store)
        if note.is_archived:
            self._check_free(note.store, note.path)
            self._check_room(note.store)
            self._make_way(note.store, note.path)
            note.store.tree[note.path] = note
            note.store.archived.remove(note)
            note.is_archived = False
        return note

    def restore(self, version: Version) -> Note:
        note = version.note
        self._known(version)
        self._live(note.store)
        if version.text is None or version.path is None:
            raise Invalid
        self._screen(version.text)
        if note.is_gone:
            return self.create(note.store, paths.segments(paths.parse(version.path)), version.text)
        return self.update(note, version.text, None, None)

    def purge(self, note: Note) -> None:
        self._exists(note.store)
        history = [each for each in note.store.versions if each.note is note]
        if note.is_gone and not history:
            raise NotFound
        if not note.is_gone and not note.is_archived:
            del note.store.tree[note.path]
            self._prune(note.store, note.path[:-1])
        if note in note.store.archived:
            note.store.archived.remove(note)
        note.is_gone = True
        where = {each.path for each in history}
        note.store.versions = [each for each in note.store.versions if each.note is not note]
        note.store.refused = [each for each in note.store.refused if each.path not in where]

    def redact(self, version: Version) -> Version:
        self._known(version)
        if not version.is_redacted:
            if not version.note.is_gone and version.ordinal == version.note.ordinal:
                raise Conflict
            version.path = version.text = None
            version.is_redacted = True
        return version

    def expire(self, store: Store, keep_ns: int) -> None:
        for version in list(store.versions):
            note = version.note
            oldest = next(each for each in store.versions if each.note is note)
            is_kept = not note.is_gone and version.ordinal > note.ordinal - KEPT_OF_LIVING
            if version is oldest and not is_kept and version.at < self.now - keep_ns:
                store.versions.remove(version)

    # ----------------------------------------------------------------- notes by the mount's rules

    def save(self, note: Note, save: Save) -> Note:
        if note.is_gone or note.is_archived:
            raise PreconditionFailed
        self._live(note.store)
        text = save.text
        if note.text not in (save.base, text):
            text = self._rebase(note, save)
        return self._replace_text(note, text, save.mode, save.mtime)

    def save_new(self, folder: Folder, name: str, save: Save, waiting: Note | None) -> Note:
        self._open(folder)
        there = self._child(folder, name)
        if there is None:
            self._check_fits(folder, name)
            self._check_room(folder.store)
            return self._place(folder, name, save.text, save.mode, save.mtime)
        note = self._as_note(there)
        text = save.text
        if note is waiting:
            if note.text not in (save.base, text):
                raise PreconditionFailed
        elif note.text != text:
            text = self._rebase(note, save)
        return self._replace_text(note, text, save.mode, save.mtime)

    def install(
        self, folder: Folder, name: str, save: Save, seen: tuple[Note, bytes] | None
    ) -> Note:
        self._open(folder)
        there = self._child(folder, name)
        if there is None:
            self._check_fits(folder, name)
            self._check_room(folder.store)
            return self._place(folder, name, save.text, save.mode, save.mtime)
        note = self._as_note(there)
        self._check_guard(note, seen)
        return self._replace_text(note, save.text, save.mode, save.mtime)

    def unlink(self, folder: Folder, name: str, expected: bytes | None) -> Note:
        note = self._as_note(self._existing(folder, name))
        self._check_expected(note, expected)
        self._end(note)
        folder.is_kept = True
        return note

    def make_folder(self, folder: Folder, name: str, mode: int) -> Folder:
        self._open(folder)
        path = self._check_fits(folder, name)
        if path in folder.store.tree:
            raise PathConflict("", conflicting_path=spelled(path))
        made = self._folder(folder.store, path, is_kept=True, mode=mode & 0o777)
        folder.store.tree[path] = made
        return made

    def remove_folder(self, folder: Folder, name: str) -> Folder:
        there = self._existing(folder, name)
        self._check_empty(there)
        del folder.store.tree[there.path]
        there.is_gone = folder.is_kept = True
        return there

    def rename(
        self,
        folder: Folder,
        name: str,
        new_folder: Folder,
        new_name: str,
        seen: tuple[Note, bytes] | None,
        *,
        replace: bool,
    ) -> Folder | Note:
        self._open(new_folder)
        moved = self._existing(folder, name)
        if folder is new_folder and name == new_name:
            return moved
        path = self._check_fits(new_folder, new_name, moved)
        there = self._child(new_folder, new_name)
        if there is not None and not replace:
            raise PathConflict("", conflicting_path=spelled(path))
        if isinstance(moved, Folder):
            return self._rename_folder(moved, folder, path, there)
        if there is None:
            del moved.store.tree[moved.path]
            moved.path = path
            moved.store.tree[path] = moved
            folder.is_kept = True
            self._version(moved, "modified")
            return moved
        target = self._as_note(there)
        self._check_guard(target, seen)
        self._end(moved)
        folder.is_kept = True
        return self._replace_text(target, moved.text, moved.mode, moved.mtime)

    def set_attr(self, each: Folder | Note, mode: int | None, mtime: int | None) -> Folder | Note:
        if each.is_gone:
            raise NotFound
        self._live(each.store)
        if mode is not None:
            each.mode = mode & 0o777
        if mtime is not None and isinstance(each, Note):
            each.mtime = mtime
        return each

    def keep_refused(self, store: Store, path: str, text: bytes) -> int:
        self._exists(store)
        store.refused_before += 1
        n = store.refused_before
        store.refused.append(Refused(n, path, text))
        store.refused = [each for each in store.refused if each.n > n - limits.REFUSED_PER_STORE]
        return n

    # ----------------------------------------------------------------------------------- checks

    def _exists(self, store: Store) -> None:
        if store.is_gone:
            raise NotFound

    def _live(self, store: Store) -> None:
        self._exists(store)
        if store.is_archived:
            raise StoreArchived

    def _there(self, note: Note) -> None:
        if note.is_gone:
            raise NotFound

    def _known(self, version: Version) -> None:
        if version not in version.note.store.versions:
            raise NotFound

    def _check_free(self, store: Store, path: Path) -> None:
        for depth in range(1, len(path) + 1):
            if isinstance(store.tree.get(path[:depth]), Note):
                raise PathConflict("", conflicting_path=spelled(path[:depth]))
        for below in store.below(path):
            if isinstance(store.tree[below], Note):
                raise PathConflict("", conflicting_path=spelled(below))

    def _check_room(self, store: Store) -> None:
        if len(list(store.notes())) >= limits.NOTES_PER_STORE:
            raise LimitReached

    def _check_expected(self, note: Note, expected: bytes | None) -> None:
        if expected is not None and expected != note.text:
            raise PreconditionFailed

    def _check_guard(self, note: Note, seen: tuple[Note, bytes] | None) -> None:
        if seen is not None and seen[0] is note and seen[1] != note.text:
            head = next(each for each in reversed(note.store.versions) if each.note is note)
            if head.actor != self.actor:
                raise PreconditionFailed

    def _check_fits(self, folder: Folder, name: str, moved: Folder | Note | None = None) -> Path:
        if "/" in name:
            raise InvalidPath
        path = paths.segments(paths.parse(spelled((*folder.path, name))))
        if isinstance(moved, Folder):
            for below in moved.store.below(moved.path):
                new = path + below[len(moved.path) :]
                if len(spelled(new).encode()) > limits.PATH_BYTES:
                    raise NameTooLong
                if len(new) > limits.PATH_SEGMENTS:
                    raise InvalidPath
        return path

    def _check_empty(self, there: Folder | Note) -> None:
        if isinstance(there, Note):
            raise NotAFolder
        if there.store.below(there.path):
            raise FolderNotEmpty

    def _open(self, folder: Folder) -> None:
        self._live(folder.store)
        if folder.is_gone:
            raise NotFound

    def _child(self, folder: Folder, name: str) -> Folder | Note | None:
        return None if folder.is_gone else folder.store.tree.get((*folder.path, name))

    def _existing(self, folder: Folder, name: str) -> Folder | Note:
        there = self._child(folder, name)
        if there is None:
            raise NotFound
        return there

    def _as_note(self, there: Folder | Note) -> Note:
        if isinstance(there, Folder):
            raise IsAFolder
        return there

    # ---------------------------------------------------------------------------------- effects

    def _folder(
        self, store: Store, path: Path, *, is_kept: bool = False, mode: int = FOLDER_MODE
    ) -> Folder:
        folder = Folder(store, path, mode, is_kept)
        self.folders.append(folder)
        return folder

    def _make_way(self, store: Store, path: Path) -> Folder:
        """Put empty folders at *path* out of the way, make those above, return the parent."""
        for each in (path, *store.below(path)):
            if each in store.tree:
                store.tree.pop(each).is_gone = True
        for depth in range(1, len(path)):
            if path[:depth] not in store.tree:
                store.tree[path[:depth]] = self._folder(store, path[:depth])
        parent = store.tree[path[:-1]]
        assert isinstance(parent, Folder)
        return parent

    def _place(self, parent: Folder, name: str, text: bytes, mode: int, mtime: int) -> Note:
        path = (*parent.path, name)
        note = Note(parent.store, path, text, mode & 0o777, mtime, self.now, self.now)
        self.notes.append(note)
        parent.store.tree[path] = note
        self._version(note, "created")
        return note

    def _version(self, note: Note, operation: str) -> None:
        note.ordinal += 1
        note.updated_at = self.now
        text = None if operation == "deleted" else note.text
        version = Version(note, operation, note.ordinal, note.where, text, self.now, self.actor)
        note.store.versions.append(version)

    def _end(self, note: Note) -> None:
        if note.is_archived:
            note.store.archived.remove(note)
        else:
            del note.store.tree[note.path]
        note.is_gone, note.is_archived = True, False
        self._version(note, "deleted")

    def _prune(self, store: Store, path: Path) -> None:
        while path and path in store.tree:
            folder = store.tree[path]
            if not isinstance(folder, Folder) or folder.is_kept or store.below(path):
                return
            del store.tree[path]
            folder.is_gone = True
            path = path[:-1]

    def _replace_text(self, note: Note, text: bytes, mode: int, mtime: int) -> Note:
        note.mode, note.mtime = mode & 0o777, mtime
        if text != note.text:
            note.text = text
            self._version(note, "modified")
        return note

    def _rebase(self, note: Note, save: Save) -> bytes:
        if save.tail is None:
            raise PreconditionFailed
        return self._screen(note.text + save.tail)

    def _screen(self, text: bytes) -> bytes:
        if len(text) > limits.NOTE_BYTES:
            raise TextTooLong
        if self.secret in text:
            raise SecretRefused
        return text

    def _rename_folder(
        self, moved: Folder, parent: Folder, path: Path, there: Folder | Note | None
    ) -> Folder:
        store, old = moved.store, moved.path
        if starts(path[:-1], old):
            raise Invalid
        if there is not None:
            self._check_empty(there)
            del store.tree[path]
            there.is_gone = True
        below = store.below(old)
        for each in (old, *below):
            entry = store.tree.pop(each)
            entry.path = path + each[len(old) :]
            store.tree[entry.path] = entry
        parent.is_kept = moved.is_kept = True
        for each in below:
            entry = store.tree[path + each[len(old) :]]
            if isinstance(entry, Note):
                self._version(entry, "modified")
        return moved
