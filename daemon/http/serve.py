"""Serving the application: the owner's unix socket, and TCP where that is asked for."""

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import h11
import trio
from fastapi import FastAPI
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import wrap_app  # pyright: ignore[reportUnknownVariableType] - WSGI's dict

from daemon.http import wire
from daemon.http.bounds import Bounds
from daemon.http.callers import Entrance
from daemon.http.framing import StrictConnection
from daemon.http.turns import Turns
from memfs import ids
from memfs.errors import Invalid, Unavailable
from memfs.types import Caller

log = logging.getLogger(__name__)

_BACKLOG = 256
_AWAY_S = 1.0  # for a client to read that there is no room
_READ_BYTES = 65_536
_BOUNDS = Bounds()
_PEER = struct.Struct("3i")  # SO_PEERCRED: pid, uid, gid (unix(7))


async def serve_http(
    app: FastAPI,
    socket_path: Path,
    owner: Caller,
    *,
    shutdown: trio.Event,
    listen: tuple[str, int] | None = None,
    bounds: Bounds = _BOUNDS,
    task_status: trio.TaskStatus[list[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until *shutdown*, then answer what is under way, within a few seconds.

    On the socket *owner* asks; on TCP every request needs a key. The caller holds the data
    directory's lock, so a socket that is already there is a dead one. started() comes once clients
    can connect, with the TCP addresses.
    Raises: Unavailable (the TCP address is taken, or not this machine's).
    """
    config, context, turns = _config(bounds), WorkerContext(None), Turns()
    framework = wrap_app(app, 0, "asgi")  # pyright: ignore[reportArgumentType] - narrower ASGI types

    async def serve_one(
        room: trio.Semaphore,
        entrance: Callable[[trio.SocketStream], Entrance],
        stream: trio.SocketStream,
    ) -> None:
        try:
            room.acquire_nowait()
        except trio.WouldBlock:
            await _turn_away(stream, bounds.connections)
            return
        try:
            state = ConnectionState(
                {
                    "entrance": entrance(stream),
                    "bounds": bounds,
                    "stopping": shutdown,
                    "turns": turns,
                }
            )
            await _Connection(framework, config, context, state, stream).run()
        except Exception:
            log.exception("bug in a connection")  # which is no reason to end the daemon
        finally:
            room.release()

    tcp = await _listen_tcp(listen)
    unix = trio.SocketListener(_listen(socket_path))
    # apart, so that whoever fills the one cannot keep the owner out of the other
    doors = [(partial(_at_socket, owner), [unix]), (_at_tcp, tcp)]
    try:
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for entrance, listeners in doors:
                    if listeners:
                        handler = partial(serve_one, trio.Semaphore(bounds.connections), entrance)
                        accepting.start_soon(
                            partial(
                                trio.serve_listeners,
                                handler,
                                listeners,
                                handler_nursery=connections,
                            )
                        )
                task_status.started([one.socket.getsockname()[:2] for one in tcp])
                await shutdown.wait()
                accepting.cancel_scope.cancel()
            connections.cancel_scope.deadline = trio.current_time() + bounds.grace_s
            await context.terminated.set()  # idle connections close, busy ones after their answer
    finally:
        _remove(socket_path)


async def _turn_away(stream: trio.SocketStream, most: int) -> None:
    """Say that there is no room; who does not read it in a moment does without."""
    error = wire.TooMany(f"{most} connections are open, which is the most: try again in a second")
    answer = wire.refusal(error, ids.new("req_"))
    head = f"HTTP/1.1 {answer.status_code} Service Unavailable\r\n"
    headers = [*answer.raw_headers, (b"retry-after", b"1"), (b"connection", b"close")]
    lines = b"".join(b"%s: %s\r\n" % pair for pair in headers)
    with trio.move_on_after(_AWAY_S), contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(head.encode() + lines + b"\r\n" + bytes(answer.body))
        await stream.send_eof()
        while await stream.receive_some(_READ_BYTES):  # closing over unread bytes is a reset
            pass


class _Connection(TCPServer):
    """One client's connection: HTTP/1.1 alone, and nothing waits for the client without an end.

    Hypercorn's own (0.18) keeps the descriptor of a client that has left until the keep-alive
    timeout, and waits for one that takes no bytes for ever, also when the daemon stops.
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: ConnectionState,
        stream: trio.SocketStream,
    ) -> None:
        super().__init__(app, config, context, state, stream)  # pyright: ignore[reportArgumentType] - a socket's stream is what it gets from hypercorn, too
        self._socket = stream
        self._stall_s: float = state["bounds"].stall_s
        self._turns: Turns = state["turns"]
        self._reading = trio.CancelScope()

    async def run(self) -> None:
        """Serve requests until either side closes."""
        try:
            async with TaskGroup() as group:
                self._task_group = group
                self.protocol = _Protocol(  # pyright: ignore[reportAttributeAccessIssue] - what the wrapper wraps
                    self.app,
                    self.config,
                    self.context,
                    group,
                    self.state,  # pyright: ignore[reportArgumentType]
                    self.protocol_send,
                )
                await self.idle_task.restart(group, self._idle_timeout)  # pyright: ignore[reportUnknownMemberType]
                await self._read_data()
        except OSError:
            pass
        finally:
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        """Send bytes, each part within a time; whoever takes none is cut off."""
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            if isinstance(event, Closed):
                self._reading.cancel()
            return
        async with self.send_lock:
            try:
                for start in range(0, len(event.data), _READ_BYTES):
                    with trio.fail_after(self._stall_s):
                        await self._socket.send_all(event.data[start : start + _READ_BYTES])
            except trio.Cancelled:
                self._socket.socket.close()  # half a message was sent: nothing may follow it
                raise
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
                self._socket.socket.close()
                await self.protocol.handle(Closed())
                # it may be held up by bytes that came after the request and that nobody will take
                self._reading.cancel()

    async def _read_data(self) -> None:
        with self._reading:
            data = b"begin"
            while data:
                try:
                    data = bytes(await self._socket.receive_some(_READ_BYTES))
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    break
                await self._turns.take()
                await self.protocol.handle(RawData(data))
            await self.protocol.handle(Closed())
        await self.idle_task.stop()


class _Protocol(H11Protocol):
    """HTTP/1.1; offers to go on in another protocol are not taken up."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        group: TaskGroup,
        state: ConnectionState,
        send: Callable[[Event], Awaitable[None]],
    ) -> None:
        super().__init__(app, config, context, group, state, False, None, None, send)  # pyright: ignore[reportArgumentType] - trio's, of which hypercorn's types know nothing
        self._strict = StrictConnection(config.h11_max_incomplete_size)
        self.connection = self._strict

    async def _send_error_response(self, status_code: int) -> None:
        """Answer a request that cannot be read, which is the last of its connection."""
        request_id = ids.new("req_")
        if status_code == 431:
            answer = wire.refusal(
                wire.HeadTooLarge.over(self.config.h11_max_incomplete_size), request_id
            )
        elif self._strict.problem:
            answer = wire.refusal(Invalid(self._strict.problem), request_id)
        else:
            answer = wire.framework_refusal(status_code, None, request_id)
        headers = [
            *answer.raw_headers,
            (b"request-id", request_id.encode()),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        for event in (
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            await self._send_h11_event(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        pass

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [pair for pair in request.headers if pair[0] != b"upgrade"]
        await super()._create_stream(
            h11.Request(
                method=request.method,
                target=request.target,
                headers=headers,
                http_version=request.http_version,
            )
        )


def _at_socket(owner: Caller, stream: trio.SocketStream) -> Entrance:
    """Return the entrance of a connection to the unix socket, by the peer's credentials."""
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(raw)
    # its mode lets nobody else connect; but who got hold of an open one is not the owner
    return Entrance(f"uid {uid}", owner if uid in (0, os.geteuid()) else None)


def _at_tcp(stream: trio.SocketStream) -> Entrance:
    try:
        peer = str(stream.socket.getpeername()[0])
    except OSError:  # it has left already
        peer = ""
    return Entrance(peer, None)


def _config(bounds: Bounds) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn")
    config.errorlog.setLevel(logging.WARNING)
    config.keep_alive_timeout = bounds.idle_s  # pyright: ignore[reportAttributeAccessIssue]
    config.h11_max_incomplete_size = bounds.head_bytes
    config.keep_alive_max_requests = 2**31
    config.include_server_header = False
    return config


def _listen(path: Path) -> trio.socket.SocketType:
    """Return a socket that only the daemon's user can connect to."""
    _remove(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        os.fchmod(sock.fileno(), 0o600)  # Linux gives the file this mode: no moment of another
        sock.bind(str(path))
        sock.listen(_BACKLOG)
        return trio.socket.fromfd(sock.fileno(), sock.family, sock.type)


async def _listen_tcp(listen: tuple[str, int] | None) -> list[trio.SocketListener]:
    if listen is None:
        return []
    host, port = listen
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --listen"
        ) from None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
