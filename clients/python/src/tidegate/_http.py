"""Requests as bytes and replies from bytes: HTTP/1.1 without sockets, for the clients with and without asyncio.

A reply is read by a generator that says what it wants next, a line or so many bytes, and is sent it. So there is one
reader, and two drivers of a few lines. Everything it reads has a bound.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any
from urllib.parse import quote, urlsplit

from tidegate.decision import Answer, Decision, OnFailure, Refused, Request, Settled, Together, Unreachable

DEADLINE_S = 0.25
HOLD_S = 30.0
IDLE_CONNECTIONS_MAX = 32
RETRY_PAUSE_S = 0.01
LINE_BYTES_MAX = 16 << 10
FIELDS_MAX = 64
BODY_BYTES_MAX = 4 << 20

LINE = 0
"""What the reader of a reply wants: a line, or else a number of bytes."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    fields: dict[str, str]
    body: bytes
    keeps_connection: bool


class Incoming:
    """Bytes that came and that no reply has taken yet."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __bool__(self) -> bool:
        return bool(self._bytes)

    def feed(self, came: bytes) -> None:
        if not came:
            raise ConnectionResetError("the server closed the connection before its answer was whole")
        self._bytes += came

    def take(self, wanted: int) -> bytes | None:
        """The line or the bytes that the reader of a reply wants, if they are here."""
        if wanted == LINE:
            end = self._bytes.find(b"\n", 0, LINE_BYTES_MAX) + 1
            if not end and len(self._bytes) >= LINE_BYTES_MAX:
                raise Unreachable(f"the answer has a line of more than {LINE_BYTES_MAX} bytes")
        else:
            end = wanted if len(self._bytes) >= wanted else 0
        taken = bytes(self._bytes[:end])
        del self._bytes[:end]
        return taken or None


class Failing:
    """What holds when the server does not answer."""

    def __init__(
        self, deadline: float, on_failure: OnFailure, on_error: Callable[[Unreachable], object] | None
    ) -> None:
        if on_failure not in ("allow", "deny"):
            raise ValueError(f'on_failure {on_failure!r} is not known; use "allow" or "deny"')
        if not 0 < deadline < float("inf"):
            raise ValueError(f"deadline {deadline!r} must be above 0, in seconds, and end")
        self.deadline, self.on_failure, self.on_error = deadline, on_failure, on_error

    def without_server(self, error: Unreachable) -> Decision:
        self.tell(error)
        return Decision.without_server(self.on_failure, error)

    def tell(self, error: Unreachable) -> None:
        """What the application's own callback raises is logged: it must not keep `on_failure` from deciding."""
        try:
            if self.on_error:
                self.on_error(error)
        except Exception:
            logging.getLogger("tidegate").exception("on_error raised, told of: %s", error)


class Settings(Failing):
    """Where the server is, too."""

    def __init__(
        self,
        server: str | None,
        token: str | None,
        token_file: str | os.PathLike[str] | None,
        deadline: float,
        on_failure: OnFailure,
        ssl_context: SSLContext | None,
        on_error: Callable[[Unreachable], object] | None,
    ) -> None:
        url = urlsplit(server or os.environ.get("TIDEGATE_SERVER") or "http://127.0.0.1:7400")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"server {server!r} is no address such as http://127.0.0.1:7400 or https://gate.example")
        super().__init__(deadline, on_failure, on_error)
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.ssl = (ssl_context or create_default_context()) if url.scheme == "https" else None
        token = read_token(token, token_file)
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        authority = url.netloc.rpartition("@")[2]
        self._path = url.path.rstrip("/")
        self._head = f"Host: {authority}\r\nContent-Type: application/json\r\n{authorization}"

    def request(self, method: str, path: str, body: object) -> bytes:
        text = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(text)}\r\n\r\n"
        return head.encode("latin-1") + text

    def unsettled(self, error: Exception) -> Settled:
        """What is known of a reservation whose end was not confirmed; what the server refuses is raised."""
        if isinstance(error, Refused) and error.code == "not_reserved":
            return Settled("not_reserved")
        if not isinstance(error, Unreachable):
            raise error
        self.tell(error)
        return Settled("unknown", error=error)


def read_token(token: str | None, file: str | os.PathLike[str] | None) -> str | None:
    """The token itself, or what its file has, or `TIDEGATE_TOKEN`."""
    if token is None and file is not None:
        token = Path(file).read_text()
    token = (token or os.environ.get("TIDEGATE_TOKEN", "")).strip()
    if not token.isascii() or any(letter <= " " for letter in token):
        raise ValueError("the token has characters that no token has; is it another file?")
    return token or None


def read_reply() -> Generator[int, bytes, Reply]:
    """Yields `LINE` or a number of bytes, is sent them, and returns the reply."""
    try:
        version, status, fields = yield from _read_head()
        while 100 <= status < 200 and status != 101:  # said before the reply
            version, status, fields = yield from _read_head()
        body = yield from _read_body(fields)
        return Reply(status, fields, body, _keeps_connection(version, fields))
    except ValueError as error:
        raise Unreachable(f"the answer is no HTTP: {error}") from error


def _read_head() -> Generator[int, bytes, tuple[bytes, int, dict[str, str]]]:
    version, status = (yield LINE).split(None, 2)[:2]
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise ValueError(version)
    return version, int(status), (yield from _read_fields())


def _keeps_connection(version: bytes, fields: dict[str, str]) -> bool:
    """Without a length the body ends with the connection."""
    told = {word.strip().lower() for word in fields.get("connection", "").split(",")}
    has_end = "content-length" in fields or "transfer-encoding" in fields
    return has_end and "close" not in told and (version == b"HTTP/1.1" or "keep-alive" in told)


def _read_fields() -> Generator[int, bytes, dict[str, str]]:
    fields: dict[str, str] = {}
    while line := (yield LINE).decode("latin-1").strip():
        name, colon, value = line.partition(":")
        if not colon or len(fields) == FIELDS_MAX:
            raise ValueError(f"{line!r}, or more than {FIELDS_MAX} fields")
        fields[name.lower()] = value.strip()
    return fields


def _read_body(fields: dict[str, str]) -> Generator[int, bytes, bytes]:
    if "chunked" not in fields.get("transfer-encoding", ""):
        length = _bounded(int(fields["content-length"])) if "content-length" in fields else 0
        return (yield length) if length else b""
    body = b""
    while length := int((yield LINE).split(b";")[0], 16):
        body += yield _bounded(length, len(body))
        yield LINE
    yield from _read_fields()  # trailers
    return body


def _bounded(length: int, before: int = 0) -> int:
    if not 0 <= length <= BODY_BYTES_MAX - before:
        raise ValueError(f"a body of {length} bytes, and at most {BODY_BYTES_MAX} are read")
    return length


def one(reply: Reply) -> Decision:
    """The answer of `/v1/hit`."""
    return Decision.from_json(_object(reply), reply.fields, reply.body)


def many(reply: Reply) -> list[Answer]:
    """The answers of `/v1/hits`, in order."""
    return [_of_many(told) for told in _object(reply, "answers")["answers"]]


def together(reply: Reply) -> Together:
    told = _object(reply)
    return Together(told["allowed"], [Decision.from_json(answer, {}, b"") for answer in told["answers"]])


def settled(reply: Reply) -> Settled:
    """The answer to a commit or a cancel."""
    told = _object(reply, "given_back")
    return Settled("settled", told["cost"], told["given_back"], told["excess"])


def reserve_body(limiter: str, key: str, cost: int, hold: float) -> dict[str, Any]:
    return {"limiter": limiter, "key": key, "cost": cost, "for": f"{round(hold * 1000)}ms"}


def reservation_path(reservation: str) -> str:
    return f"/v1/reservations/{quote(reservation, safe='')}"


def hits_body(requests: Sequence[Request], *, together: bool) -> dict[str, Any]:
    return {"requests": [request.to_json() for request in requests], "together": together}


def _of_many(told: dict[str, Any]) -> Answer:
    return Decision.from_json(told, {}, b"") if "allowed" in told else Refused(told)


def _object(reply: Reply, member: str = "allowed") -> dict[str, Any]:
    """The JSON of a decision. Anything else is a refusal, if the request is at fault, or as good as no answer.

    501 is a refusal, too: this store or this algorithm cannot do it. 408 is none: the request came too slowly.
    """
    try:
        told = json.loads(reply.body)
    except ValueError:
        told = None
    if reply.status in (200, 429) and isinstance(told, dict) and member in told:
        return told
    is_refusal = (400 <= reply.status < 500 and reply.status != 408) or reply.status == 501
    if is_refusal and isinstance(told, dict) and "code" in told:
        raise Refused(told)
    raise Unreachable(f"the answer is no decision: {reply.status} {reply.body[:200]!r}")
