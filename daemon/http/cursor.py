"""Page cursors: opaque, signed, bound to one listing and its filters; they outlive a restart."""

import base64
import hashlib
import hmac
import os
from pathlib import Path

from memfs.errors import Invalid

_PREFIX = "page_"
_KEY_BYTES = 32
_MAC_BYTES = 16


class Cursors:
    """Makes and opens the cursors of one data directory."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, position: str | None, listing: str) -> str | None:
        """Return the cursor that goes on at *position* of *listing*; None after the last page.

        listing: the route with everything that decides which rows there are, and in which order.
        """
        if position is None:
            return None
        text = position.encode()
        mac = hmac.digest(self._key, f"{listing}\0{position}".encode(), hashlib.sha256)
        return _PREFIX + base64.urlsafe_b64encode(mac[:_MAC_BYTES] + text).decode().rstrip("=")

    def open(self, cursor: str | None, listing: str) -> str | None:
        """Return the position that *cursor* stands for; None is the start.

        Raises: Invalid when it is not one that `seal` made for this listing.
        """
        if cursor is None:
            return None
        body = cursor.removeprefix(_PREFIX)
        try:
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            position = raw[_MAC_BYTES:].decode()
            genuine = hmac.compare_digest(self.seal(position, listing) or "", cursor)
        except ValueError:  # not base64, not UTF-8; compare_digest wants ASCII and says TypeError
            genuine, position = False, ""
        except TypeError:
            genuine, position = False, ""
        if not genuine:
            raise Invalid(
                "page: not a cursor of this listing with these filters; send next_page as it came, "
                "or leave page out to start again"
            )
        return position


def load_key(data_dir: Path) -> bytes:
    """Return the data directory's own key, made on the first call."""
    path = data_dir / "cursor.key"
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != _KEY_BYTES:
        key = os.urandom(_KEY_BYTES)
        fresh = data_dir / "cursor.key.new"
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    return key
