"""Who a request comes from (SEMANTICS: Callers and keys)."""

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from memfs.engine import keys
from memfs.engine.service import Service
from memfs.errors import RateLimited, Unauthenticated
from memfs.types import Caller

_BURST = 10  # failures an address may make at once
_REFILL_S = 6.0  # until it may make one more
_ADDRESSES = 4096


@dataclass(frozen=True, slots=True)
class Entrance:
    """How a connection came in. owner: who it is without a key; None: a key is needed."""

    peer: str
    owner: Caller | None


class Callers:
    """Tells callers by their keys and slows down those who guess."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._failures = _Failures()

    def identify(self, entrance: Entrance, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Return who sends a request.

        On the owner's socket a secret that is none of ours is ignored: the SDK sends some always.
        Raises: Unauthenticated, RateLimited.
        """
        sent = _sent(headers)
        secrets = {word for word in sent if word.startswith(keys.PREFIX)}
        if entrance.owner is not None and not secrets:
            return entrance.owner
        if len(secrets) == 1:
            secret = secrets.pop()
            found = self._service.view(keys.find, secret)
            if found is not None:
                return keys.caller_of(found, secret)
        self._failures.note(entrance.peer)
        if secrets:
            raise Unauthenticated("two different keys were sent: send one of them")
        if sent:
            raise Unauthenticated(
                "this key is unknown or was revoked: make one with `memfs key create`"
            )
        raise Unauthenticated(
            "a key is needed here: send `Authorization: Bearer KEY`; "
            "make one with `memfs key create`"
        )


class _Failures:
    """A token bucket for each address, for the most recent ones."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()  # when the bucket is full again

    def note(self, peer: str) -> None:
        """Count a failure.

        Raises: RateLimited when there were too many.
        """
        now = time.monotonic()
        full_at = max(self._full_at.pop(peer, now), now)
        spare_s = _BURST * _REFILL_S - (full_at - now)
        if spare_s >= _REFILL_S:
            full_at += _REFILL_S
        self._full_at[peer] = full_at
        if len(self._full_at) > _ADDRESSES:
            self._full_at.popitem(last=False)
        if spare_s < _REFILL_S:
            wait_s = int(_REFILL_S - spare_s) + 1
            raise RateLimited(f"too many wrong keys: wait {wait_s} s, then try again", wait_s)


def _sent(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the words of all headers that may hold a key, with or without a scheme."""
    return [
        word
        for name, value in headers
        if name in (b"authorization", b"x-api-key")
        for word in value.decode("latin-1").split()
    ]
