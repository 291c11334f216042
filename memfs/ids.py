"""Ids: a prefix and a ULID that ends in the number of what it names.

So no table is needed to find it: 48 bits of milliseconds, 16 random bits, then the store's,
node's or change's number, or random bits where there is none. Whoever follows an id compares it
with the one in the record: a number alone opens nothing. Ids sort roughly by time but promise no
order; the change log does.
"""

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_VALUE = {char: value for value, char in enumerate(_ALPHABET)}
_LENGTH = 26


def new(prefix: str, number: int | None = None) -> str:
    """Return a fresh id such as mem_01JE… for the thing with that number."""
    if number is None:
        number = int.from_bytes(os.urandom(8))
    head = (time.time_ns() // 1_000_000) << 16 | int.from_bytes(os.urandom(2))
    ulid = head << 64 | number
    return prefix + "".join([_ALPHABET[ulid >> shift & 31] for shift in range(125, -1, -5)])


def number(value: str, prefix: str) -> int | None:
    """Return the number in an id, None if *value* is not an id with that prefix."""
    if not value.startswith(prefix) or len(value) != len(prefix) + _LENGTH:
        return None
    ulid = 0
    for char in value[len(prefix) :]:
        digit = _VALUE.get(char)
        if digit is None:
            return None
        ulid = ulid << 5 | digit
    return ulid & (2**64 - 1)


def has_shape(value: str, prefix: str) -> bool:
    """Return whether *value* could have come from `new(prefix)`."""
    return number(value, prefix) is not None
