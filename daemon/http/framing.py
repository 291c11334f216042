"""Where a request ends, read strictly: h11 (0.16) is lenient where a proxy before us may not be.

Two readers who find different ends in the same bytes take one request for two: what the proxy let
through as a body would come here as a request of its own.
"""

import re

import h11

_BARE_LF = re.compile(rb"(?<!\r)\n")
_FOLD = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:", re.IGNORECASE)
_CODING = re.compile(rb"\ntransfer-encoding[ \t]*:", re.IGNORECASE)


class StrictConnection(h11.Connection):
    """h11's connection of a server. problem: why a request was refused, empty if h11 refused it."""

    def __init__(self, head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=head_bytes)
        self.problem = ""

    def _extract_next_receive_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event; next_event does what is to be done when this raises."""
        if self.their_state is h11.IDLE:
            self._check_head(self.trailing_data[0])
        in_body, before = self.their_state is h11.SEND_BODY, len(self._receive_buffer)
        event = super()._extract_next_receive_event()
        if in_body:
            after = 0 if event is h11.NEED_DATA else len(self._receive_buffer)
            content = len(event.data) if isinstance(event, h11.Data) else 0
            if before - after - content > self._max_incomplete_event_size:
                self._refuse("chunk extensions and trailers are too long: leave them out")
        return event

    def _check_head(self, received: bytes) -> None:
        """Check a head, or what there is of it."""
        head, end, _ = received.partition(b"\r\n\r\n")
        if _BARE_LF.search(head):
            self._refuse("a line of the head ends without CR: end each with CR LF")
        if _FOLD.search(head):
            self._refuse("a header goes on in a second line: send it in one")
        if end and _LENGTH.search(head) and _CODING.search(head):
            self._refuse("content-length and transfer-encoding exclude each other: send one")

    def _refuse(self, problem: str) -> None:
        self.problem = problem
        raise h11.RemoteProtocolError(problem, error_status_hint=400)
