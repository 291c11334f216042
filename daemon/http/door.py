"""What the routes are given: the service, who asks, and what only the daemon knows.

A route says in its signature what its caller must be: `Reads`, `Writes` or `Manages` a store that
the path names, `Person`, `Sees` (all but agents), or `TheDoor` when it asks memfs.engine.access
itself. `scope` is for whole routers.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Concatenate, ParamSpec, TypeVar

from fastapi import Depends, Request, params

from daemon.http.cursor import Cursors
from memfs.engine import access, keys
from memfs.engine.service import Service, Txn
from memfs.types import Attachment, Caller, Seq, Task, Time

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Door:
    """One way in; `caller` is of one request.

    settle: returns once the mounts have dropped what they cached of everything up to a seq and
    show the tasks of that seq; it bounds its own waiting.
    mount_path: the folder where a task sees an attachment.
    status: what the daemon knows of itself; `mounts` is a list of objects with `path` and `alive`,
    `problems` a list of sentences.
    judge: what let the caller in. It is asked again in each transaction, because since then the
    key may have been revoked or the task that reached the store may have ended.
    """

    service: Service
    cursors: Cursors
    settle: Callable[[Seq], Awaitable[None]]
    mount_path: Callable[[Task, Attachment], str]
    status: Callable[[], Awaitable[dict[str, object]]]
    caller: Caller
    judge: Callable[[Txn, Caller], object] = keys.check_valid

    async def scan(
        self, rule: Callable[Concatenate[Txn, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a long reading rule in a thread.

        Raises: what the rule raises; what the judge raises.
        """

        def judged(txn: Txn) -> R:
            self.judge(txn, self.caller)
            return rule(txn, *args, **kwargs)

        return await self.service.scan(judged)

    async def commit(
        self,
        rule: Callable[Concatenate[Txn, Caller, Time, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a writing rule; when this returns it is on disk and visible through every mount.

        Raises: what the rule raises; ReadOnlyKey; what the judge raises.
        """
        access.check_writes(self.caller)

        def judged(txn: Txn, caller: Caller, now: Time) -> R:
            self.judge(txn, caller)
            return rule(txn, caller, now, *args, **kwargs)

        result = await self.service.commit(judged, self.caller)
        await self.settle(self.service.feed.seq)
        return result


# Dependencies are coroutines because FastAPI would send plain functions to a thread. They take the
# request, not each other: FastAPI solves each one anew, which takes as long as reading a note.


def _of(request: Request, judge: Callable[[Txn, Caller], object] = keys.check_valid) -> Door:
    door: Door = replace(request.app.state.door, caller=request.state.caller, judge=judge)
    door.service.view(judge, door.caller)
    return door


def _of_store(request: Request, check: Callable[[Txn, Caller, str], object], store_id: str) -> Door:
    def judge(txn: Txn, caller: Caller) -> None:
        keys.check_valid(txn, caller)
        check(txn, caller, store_id)

    return _of(request, judge)


async def _door(request: Request) -> Door:
    return _of(request)


async def _reads(request: Request, memory_store_id: str) -> Door:
    return _of_store(request, access.store, memory_store_id)


async def _writes(request: Request, memory_store_id: str) -> Door:
    return _of_store(request, access.store_to_write, memory_store_id)


async def _manages(request: Request, memory_store_id: str) -> Door:
    return _of_store(request, access.store_to_manage, memory_store_id)


async def _person(request: Request) -> Door:
    door = _of(request)
    access.check_person(door.caller)
    return door


async def _sees(request: Request) -> Door:
    door = _of(request)
    access.check_not_agent(door.caller)
    return door


TheDoor = Annotated[Door, Depends(_door)]
Reads = Annotated[Door, Depends(_reads)]
Writes = Annotated[Door, Depends(_writes)]
Manages = Annotated[Door, Depends(_manages)]
Person = Annotated[Door, Depends(_person)]
Sees = Annotated[Door, Depends(_sees)]


def scope(name: str) -> params.Depends:
    """Return the dependency of a router whose routes need a scope."""

    async def check(request: Request) -> None:
        access.check_scope(request.state.caller, name)

    return params.Depends(check)
