"""What one connection may cost (SEMANTICS: Limits of a connection)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers of one server; tests use short times."""

    connections: int = 256  # at once, for the socket and for TCP each
    head_bytes: int = 16_384  # of a request's line and headers
    idle_s: float = 75.0  # from connecting, or from an answer, until a request's head is whole
    body_s: float = 60.0  # from the head until the body is whole
    import_s: float = 900.0  # from having a place until an import's body is whole
    answer_s: float = 120.0  # from the body until the answer begins
    stall_s: float = 60.0  # while a client takes nothing of an answer
    grace_s: float = 5.0  # at the end, for what is under way
    heartbeat_s: float = 15.0  # without an event
