"""A writer for test_crash: saves until the daemon dies, and says what it was promised.

`python crash_writer.py KIND SEED FILE FILE` prints for each save, as one line with one write:
`try FILE SHA256` before it begins, and `kept FILE SHA256` after the call returned that promises
the text is on disk. It ends with code 0 when the mount is dead and with 1 at any other error.
"""

import errno
import os
import random
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

DEAD = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT}  # ENOENT: the dead mount is removed
LONGEST_BYTES = 20_000
FULL_BYTES = 60_000


def say(what: str, path: Path, text: bytes) -> None:
    os.write(1, f"{what} {path} {sha256(text).hexdigest()}\n".encode())


def make_text(chance: random.Random, path: Path, number: int) -> bytes:
    """Return a text that no other save has, most often short."""
    size = int(LONGEST_BYTES ** chance.random())
    filler = "".join(chance.choices("abcdefgh \n", k=size))
    return f"{path.name} {os.getpid()} {number} {size}\n{filler}".encode()


def put(path: Path, text: bytes, flags: int) -> int:
    """Write in two parts; half of a text must never be seen."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    half = len(text) // 2
    for part in (text[:half], text[half:]):
        os.write(fd, part)
    return fd


def rewrite(chance: random.Random, path: Path, number: int) -> None:
    """As a shell's `echo text > file`."""
    text = make_text(chance, path, number)
    say("try", path, text)
    os.close(put(path, text, os.O_TRUNC))
    say("kept", path, text)


def append(chance: random.Random, path: Path, number: int) -> None:
    """As `echo line >> file`, or a log that is kept open and synced."""
    old = path.read_bytes() if path.exists() else b""
    if len(old) > FULL_BYTES:
        return rewrite(chance, path, number)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for line in range(chance.choice((1, 1, 3))):
        more = f"{os.getpid()} {number} {line} {'x' * chance.randint(0, 200)}\n".encode()
        old += more
        say("try", path, old)
        os.write(fd, more)
        os.fsync(fd)
        say("kept", path, old)
    os.close(fd)
    return None


def replace(chance: random.Random, path: Path, number: int) -> None:
    """As editors and careful programs save: a temporary file, synced, renamed over the note."""
    text = make_text(chance, path, number)
    temporary = path.with_name(f".tmp-{os.getpid()}-{number}")
    fd = put(temporary, text, os.O_EXCL)
    os.fsync(fd)
    os.close(fd)
    say("try", path, text)
    temporary.replace(path)
    say("kept", path, text)


def patch(chance: random.Random, path: Path, number: int) -> None:
    """As a program that keeps its file open and syncs it at times."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for step in range(chance.choice((1, 2, 4))):
        text = make_text(chance, path, number * 10 + step)
        say("try", path, text)
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
        os.fsync(fd)
        say("kept", path, text)
    os.close(fd)


def main(kind: str, seed: str, *files: str) -> int:
    saves: dict[str, Callable[[random.Random, Path, int], None]] = {
        "rewrite": rewrite, "append": append, "replace": replace, "patch": patch,
    }  # fmt: skip
    chance = random.Random(int(seed))
    number = 0
    while True:
        number += 1
        try:
            saves[kind](chance, Path(chance.choice(files)), number)
        except OSError as error:
            if error.errno in DEAD:
                return 0
            print(f"{kind}: {error!r}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
