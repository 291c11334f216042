"""What one invocation knows: its options, its client, and how it ends.

Every command takes --json and --workspace, before or after its name.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from daemon.cli.exits import Exit, of_status
from memfs.errors import InUse, MemfsError, Unavailable

if TYPE_CHECKING:
    from daemon.cli.client import Client
    from daemon.config import Config


class Failure(click.ClickException):
    """The command did not do what was asked; message and exit code say why."""

    def __init__(self, code: Exit, message: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = code.value  # pyright: ignore[reportAttributeAccessIssue] - click asks the instance
        kind = "error" if code is Exit.ERROR else f"{code.name.lower()}_error"
        self.problem = problem or {"type": kind, "message": message}
        self.json = session().json

    @classmethod
    def of(cls, status: int, problem: dict[str, Any]) -> "Failure":
        """Return the failure for an error of the API."""
        return cls(of_status(status), str(problem.get("message", "failed")), problem)

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
    words: tuple[str, ...] = ()  # the command line
    _config: "Config | None" = None
    _client: "Client | None" = None

    @property
    def config(self) -> "Config":
        """The workspace's configuration, found on first use."""
        if self._config is None:
            from daemon.config import Config, find_workspace

            self._config = Config(find_workspace(self.workspace, os.environ, _here()))
        return self._config

    @property
    def client(self) -> "Client":
        """The connection to the workspace's daemon, made on first use."""
        if self._client is None:
            from daemon.cli.client import Client

            self._client = Client(self.config)
            click.get_current_context().find_root().call_on_close(self._client.close)
        return self._client


def _here() -> Path:
    """Return the current folder; where it is gone, as after an unmount, the shell's name for it."""
    try:
        return Path.cwd()
    except OSError:
        return Path(os.environ.get("PWD", "/"))


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
    """A group with the shared options."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


class Root(Group):
    """The outermost group: every error ends with its exit code, and as JSON if that is asked."""

    group_class = Group

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - click's own
    ) -> click.Context:
        """Parse the options in front of the command."""
        words = tuple(args)
        try:
            return super().make_context(info_name, args, parent, obj=Session(words=words), **extra)
        except click.UsageError as error:
            raise _as_asked(error, words) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except MemfsError as error:
            problem = {"type": error.type, "message": str(error)}
            raise Failure.of(_status_of(error), problem) from error
        except click.UsageError as error:
            raise _as_asked(error, ctx.find_object(Session).words) from None  # pyright: ignore[reportOptionalMemberAccess] - made above


def _status_of(error: MemfsError) -> int:
    """Return an error's status; one that no daemon answered says nothing of a daemon.

    But for that which says that one runs.
    """
    is_ours = isinstance(error, Unavailable) and not isinstance(error, InUse)
    return 500 if is_ours else error.status


def _as_asked(error: click.UsageError, words: tuple[str, ...]) -> click.ClickException:
    """Return a usage error as JSON if the command line, which nobody could parse, asks for that."""
    own = words[: words.index("--")] if "--" in words else words
    if "--json" not in own:
        return error
    failure = Failure(Exit.USAGE, error.format_message())
    failure.json = True
    return failure
