"""What one invocation knows: its options, its client, and how it ends.

Every command takes --json and --workspace, before or after its name.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from memfs.errors import MemfsError

if TYPE_CHECKING:
    from daemon.cli.client import Client
    from daemon.config import Config

ERROR, NOT_RUNNING, NOT_FOUND, REFUSED, CONFLICT, NO_SPACE = 1, 3, 4, 5, 9, 28

EXIT_CODES = """\b
Exit codes:
  0   done
  1   error
  2   wrong usage
  3   the daemon is not running
  4   not found
  5   refused: the request or the text breaks a rule
  9   conflict: the path is taken, the note was changed since, the state forbids it
  28  no space left
"""

_OF_STATUS = {404: NOT_FOUND, 409: CONFLICT, 507: NO_SPACE} | dict.fromkeys(
    (400, 401, 403, 413), REFUSED
)


class Failure(click.ClickException):
    """The command did not do what was asked; message and exit code say why."""

    def __init__(self, code: int, message: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = code  # pyright: ignore[reportAttributeAccessIssue] - click asks the instance
        self.problem = problem or {"type": "error", "message": message}
        self.json = session().json

    @classmethod
    def of(cls, status: int, problem: dict[str, Any]) -> "Failure":
        """Return the failure for an error of the API."""
        return cls(_OF_STATUS.get(status, ERROR), str(problem.get("message", "failed")), problem)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message to stderr; with --json the error's object."""
        message = f"memfs: {self.format_message()}"
        if self.json:
            message = json.dumps({"type": "error", "error": self.problem})
        click.echo(message, file=file or sys.stderr)


@dataclass
class Session:
    """The options that every command takes, and the one client."""

    workspace: str | None = None
    json: bool = False
    _config: "Config | None" = None
    _client: "Client | None" = None

    @property
    def config(self) -> "Config":
        """The workspace's configuration, found on first use."""
        if self._config is None:
            import os

            from daemon.config import Config, find_workspace

            self._config = Config(find_workspace(self.workspace, os.environ, Path.cwd()))
        return self._config

    @property
    def client(self) -> "Client":
        """The connection to the workspace's daemon, made on first use."""
        if self._client is None:
            from daemon.cli.client import Client

            self._client = Client(self.config)
            click.get_current_context().find_root().call_on_close(self._client.close)
        return self._client


def session() -> Session:
    """Return this invocation's session."""
    context = click.get_current_context(silent=True)
    found = context.find_object(Session) if context else None
    return found or Session()


def _setter(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def set_option(context: click.Context, parameter: click.Parameter, value: object) -> None:
        root = context.find_root()
        if root.obj is None:
            root.obj = Session()
        if value:
            setattr(root.obj, name, value)

    return set_option


def _shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_setter("json"),
            help="Print JSON, errors too.",
        ),
        click.Option(
            ["--workspace"],
            metavar="DIR",
            expose_value=False,
            is_eager=True,
            callback=_setter("workspace"),
            help="The workspace. [default: MEMFS_WORKSPACE, or found above the current folder]",
        ),
    ]


class Command(click.Command):
    """A command with the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


class Group(click.Group):
    """A group with the shared options; rule and configuration errors end with their exit code."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.params += _shared_options()

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except MemfsError as error:
            problem = {"type": error.type, "message": str(error)}
            raise Failure.of(error.status, problem) from error
