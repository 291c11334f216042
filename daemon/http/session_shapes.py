"""The shapes of /v1/sessions: a task in the words of Claude's sessions.

Fields that say what a model did are there because clients need them; memfs runs none, so they
hold zeros, nulls and empty lists.
"""

from typing import Literal

from pydantic import BaseModel, Field

from daemon.http import wire
from memfs import types
from memfs.errors import Invalid

Status = Literal["rescheduling", "running", "idle", "terminated"]

AGENT_VERSION = 1  # a worker has no others
_ENVIRONMENT = "env_local"  # of a task that was not made as a session

# Answers ----------------------------------------------------------------------------------------


class ExecutionIdentity(BaseModel):
    """Whose rights an agent's runs have: nobody's in particular."""

    type: Literal["service_account"] = "service_account"


class Model(BaseModel):
    """The model that a worker runs on; memfs does not know."""

    id: str = "unknown"


class Agent(BaseModel):
    """A worker."""

    type: Literal["agent"] = "agent"
    id: str
    name: str
    version: int = AGENT_VERSION
    description: None = None
    model: Model = Model()
    system: None = None
    tools: list[str] = []
    skills: list[str] = []
    mcp_servers: list[str] = []
    multiagent: None = None
    execution_identity: ExecutionIdentity = ExecutionIdentity()


class Stats(BaseModel):
    """How long a session has been there."""

    active_seconds: float = 0.0
    duration_seconds: float


class CacheCreation(BaseModel):
    """Tokens that went into prompt caches."""

    ephemeral_1h_input_tokens: int = 0
    ephemeral_5m_input_tokens: int = 0


class Usage(BaseModel):
    """Tokens that a session used."""

    active_seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation: CacheCreation = CacheCreation()


class Session(BaseModel):
    """A task as a session; the worker's own store comes first."""

    type: Literal["session"] = "session"
    id: str
    agent: Agent
    environment_id: str
    status: Literal["idle", "terminated"]
    title: str | None
    metadata: dict[str, str]
    resources: list[wire.Attached]
    vault_ids: list[str] = []
    outcome_evaluations: list[str] = []
    budget: None = None
    deployment_id: None = None
    stats: Stats
    usage: Usage = Usage()
    created_at: wire.Stamp
    updated_at: wire.Stamp
    archived_at: wire.Stamp | None


class Deleted(BaseModel):
    """What was removed."""

    type: Literal["session_deleted"] = "session_deleted"
    id: str


def session(
    task: types.Task, worker: types.Worker, resources: list[wire.Attached], now: types.Time
) -> Session:
    """Return a task's shape as a session."""
    ended = task.ended_at
    since = task.created_at
    return Session(
        id=task.id,
        agent=Agent(id=worker.id, name=worker.name),
        environment_id=task.environment_id or _ENVIRONMENT,
        status="idle" if ended is None else "terminated",
        title=task.title,
        metadata=task.metadata,
        resources=resources,
        stats=Stats(duration_seconds=max(0, (now if ended is None else ended) - since) / 1e9),
        created_at=wire.stamp(since),
        updated_at=wire.stamp(max(since, task.updated_at or since, ended or since)),
        archived_at=wire.stamp_or_null(ended),
    )


# Requests ---------------------------------------------------------------------------------------


class AgentReference(wire.Body):
    """A worker by id or name."""

    type: Literal["agent"] = "agent"
    id: str
    version: int | None = None


class CreateSession(wire.Body):
    """A new session. id (ours): the task's; without it memfs chooses."""

    agent: str | AgentReference
    environment_id: str | None = Field(default=None, min_length=1)
    title: str | None = None
    metadata: dict[str, str] | None = None
    resources: list[wire.Resource] | None = None
    budget: dict[str, object] | None = None
    initial_events: list[dict[str, object]] | None = None
    vault_ids: list[str] | None = None
    id: wire.TaskId | None = None

    def worker(self) -> str:
        """Return the worker's name or id.

        Raises: Invalid.
        """
        if isinstance(self.agent, str):
            return self.agent
        if self.agent.version not in (None, AGENT_VERSION):
            raise Invalid(f"agent.version: a worker has only version {AGENT_VERSION}; leave it out")
        return self.agent.id


class UpdateSession(wire.Body):
    """What changes; null or absent stays. In metadata null removes a key."""

    title: str | None = None
    metadata: dict[str, str | None] | None = None
    agent: dict[str, object] | None = None
    budget: dict[str, object] | None = None
    vault_ids: list[str] | None = None


def check_runs_nothing(**asked: object) -> None:
    """Check that nothing is asked which only who runs a model could do.

    Raises: Invalid.
    """
    for name, value in asked.items():
        if value:
            raise Invalid(f"{name}: memfs runs no models and keeps no vaults; leave it out")
