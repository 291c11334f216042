"""Answers that are written part by part, for as long as the client takes them."""

import logging
from collections.abc import Awaitable, Callable, Mapping

import trio
from fastapi import Response
from starlette.types import Receive, Scope, Send

from memfs.errors import MemfsError

log = logging.getLogger(__name__)

More = Callable[[bytes], Awaitable[None]]


class Stream(Response):
    """Runs *write*, whose argument sends a part, and ends when it returns or the client leaves.

    A part is sent before the next one is made: a slow client costs one part. What *write* raises
    cuts the answer off, so that the client sees that it is not whole.
    """

    def __init__(
        self,
        write: Callable[[More], Awaitable[None]],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""

        async def more(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        whole = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_left, receive, nursery.cancel_scope)
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
            try:
                await self._write(more)
                whole = True
            except MemfsError as error:  # the caller may not have the rest any more
                log.info("an answer was cut off: %s", error)
            nursery.cancel_scope.cancel()
        if whole:
            # nobody may wait for a disconnect any more: hypercorn (0.18) reports one with the end
            # of an answer, and stopping then would leave the connection without its timeout
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_left(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
