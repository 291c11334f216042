"""The one place where errors become errnos, and where every request gets a deadline.

pyfuse3 ends the mount at any exception but FUSEError, so every handler wears `handler`.
"""

import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import trio
from pyfuse3 import FUSEError

from memfs import limits
from memfs.errors import MemfsError

log = logging.getLogger(__name__)

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")


def handler(
    fn: Callable[Concatenate[S, P], R | Coroutine[Any, Any, R]],
) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, R]]":
    """Make a FUSE handler of a plain function.

    One that can answer at once returns the answer; one that has to wait returns a coroutine, which
    gets a deadline, since signals do not interrupt a FUSE request.
    """

    @functools.wraps(fn)
    async def wrapped(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = fn(self, *args, **kwargs)
            if isinstance(result, CoroutineType):
                with trio.fail_after(limits.FUSE_DEADLINE_S):
                    return await cast("Coroutine[Any, Any, R]", result)
            return cast("R", result)
        except MemfsError as error:
            raise FUSEError(error.errno) from error
        except trio.TooSlowError as error:
            log.warning("%s took over %s s", fn.__name__, limits.FUSE_DEADLINE_S)
            raise FUSEError(errno.ETIMEDOUT) from error
        except FUSEError:
            raise
        except Exception:
            log.exception("bug in %s", fn.__name__)
            raise FUSEError(errno.EIO) from None

    return wrapped


def last(
    fn: Callable[Concatenate[S, P], Coroutine[Any, Any, None] | None],
) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, None]]":
    """Make a handler whose errors reach nobody (forget, release): it only logs."""

    @functools.wraps(fn)
    async def wrapped(self: S, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            result = fn(self, *args, **kwargs)
            if isinstance(result, CoroutineType):
                with trio.move_on_after(limits.FUSE_DEADLINE_S):
                    await result
        except MemfsError as error:
            log.warning("%s: %s", fn.__name__, error)
        except Exception:
            log.exception("bug in %s", fn.__name__)

    return wrapped
