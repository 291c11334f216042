"""Ids: a prefix and a ULID. They sort roughly by time but promise no order; the change log does."""

import os
import re
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_SHAPE = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


def new(prefix: str) -> str:
    """Return a fresh id such as mem_01JE…: 48 bits of milliseconds, 80 random bits."""
    number = (time.time_ns() // 1_000_000 << 80) | int.from_bytes(os.urandom(10), "big")
    return prefix + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def has_shape(value: str, prefix: str) -> bool:
    """Return whether *value* could have come from `new(prefix)`."""
    return value.startswith(prefix) and _SHAPE.fullmatch(value[len(prefix) :]) is not None
