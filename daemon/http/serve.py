"""Serving the application: the owner's unix socket, and TCP where that is asked for."""

import logging
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from fastapi import FastAPI
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app  # pyright: ignore[reportUnknownVariableType] - WSGI's dict

from daemon.http.callers import Entrance
from memfs.errors import Unavailable
from memfs.types import Caller

log = logging.getLogger(__name__)

_BACKLOG = 256
_KEEP_ALIVE_S = 75
_GRACEFUL_S = 5.0
_PEER = struct.Struct("3i")  # SO_PEERCRED: pid, uid, gid (unix(7))


async def serve_http(
    app: FastAPI,
    socket_path: Path,
    owner: Caller,
    *,
    shutdown: trio.Event,
    listen: tuple[str, int] | None = None,
    task_status: trio.TaskStatus[list[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until *shutdown*, then answer what is under way, within a few seconds.

    On the socket *owner* asks; on TCP every request needs a key. The caller holds the data
    directory's lock, so a socket that is already there is a dead one. started() comes once clients
    can connect, with the TCP addresses.
    Raises: Unavailable (the TCP address is taken, or not this machine's).
    """
    config, context = _config(), WorkerContext(None)
    framework = wrap_app(app, 0, "asgi")  # pyright: ignore[reportArgumentType] - narrower ASGI types

    async def serve_one(
        entrance: Callable[[trio.SocketStream], Entrance], stream: trio.SocketStream
    ) -> None:
        try:
            state = ConnectionState({"entrance": entrance(stream)})
            await _Connection(framework, config, context, state, stream).run()  # pyright: ignore[reportArgumentType] - a socket's stream is what it gets from hypercorn, too
        except Exception:
            log.exception("bug in a connection")  # which is no reason to end the daemon

    tcp = await _listen_tcp(listen)
    unix = trio.SocketListener(_listen(socket_path))
    at_socket = partial(serve_one, partial(_at_socket, owner))
    try:
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for handler, listeners in ((at_socket, [unix]), (partial(serve_one, _at_tcp), tcp)):
                    if listeners:
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
            connections.cancel_scope.deadline = trio.current_time() + _GRACEFUL_S
            await context.terminated.set()  # idle connections close, busy ones after their answer
    finally:
        _remove(socket_path)


class _Connection(TCPServer):
    """One client's connection.

    Hypercorn's own (0.18) keeps the descriptor of a client that has left until the keep-alive
    timeout; a shell loop of short commands would use them all up.
    """

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


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


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn")
    config.errorlog.setLevel(logging.WARNING)
    config.keep_alive_timeout = _KEEP_ALIVE_S
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
