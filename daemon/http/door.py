"""What the routes are given: the service, who asks, and what only the daemon knows."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Concatenate, ParamSpec, TypeVar

from fastapi import Depends, Request

from daemon.http.cursor import Cursors
from memfs.engine.service import Service, Txn
from memfs.types import Attachment, Caller, Seq, Task, Time

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Door:
    """One way in.

    settle: returns once the mounts have dropped what they cached of everything up to a seq and
    show the tasks of that seq; it bounds its own waiting.
    mount_path: the folder where a task sees an attachment.
    status: what the daemon knows of itself; `mounts` is a list of objects with `path` and `alive`,
    `problems` a list of sentences. It is called on the loop.
    """

    service: Service
    cursors: Cursors
    caller: Caller
    settle: Callable[[Seq], Awaitable[None]]
    mount_path: Callable[[Task, Attachment], str]
    status: Callable[[], dict[str, object]]

    async def commit(
        self,
        rule: Callable[Concatenate[Txn, Caller, Time, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a writing rule; when this returns it is on disk and visible through every mount."""
        result = await self.service.commit(rule, self.caller, *args, **kwargs)
        await self.settle(self.service.feed.seq)
        return result


def _door(request: Request) -> Door:
    return request.app.state.door


TheDoor = Annotated[Door, Depends(_door)]
