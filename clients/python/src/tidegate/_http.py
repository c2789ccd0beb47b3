"""Requests as bytes and replies from bytes: HTTP/1.1 without sockets, for the clients with and without asyncio.

A reply is read by a generator that says what it wants next, a line or so many bytes, and is sent it. So there is one
reader, and two drivers of five lines. Everything it reads has a bound.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any
from urllib.parse import urlsplit

from tidegate.decision import Answer, Decision, OnFailure, Refused, Request, Together, Unreachable

DEADLINE_S = 0.25
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

    @property
    def keeps_connection(self) -> bool:
        return self.fields.get("connection", "").lower() != "close"


class Settings:
    """Where the server is, and what holds when it does not answer."""

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
        if on_failure not in ("allow", "deny"):
            raise ValueError(f'on_failure {on_failure!r} is not known; use "allow" or "deny"')
        if not deadline > 0:
            raise ValueError(f"deadline {deadline!r} must be above 0, in seconds")
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.ssl = (ssl_context or create_default_context()) if url.scheme == "https" else None
        self.deadline = deadline
        self.on_failure = on_failure
        self.on_error = on_error
        token = read_token(token, token_file)
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        authority = url.netloc.rpartition("@")[2]
        self._path = url.path.rstrip("/")
        self._head = f"Host: {authority}\r\nContent-Type: application/json\r\n{authorization}"

    def post(self, path: str, body: object) -> bytes:
        text = json.dumps(body).encode()
        head = f"POST {self._path}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(text)}\r\n\r\n"
        return head.encode("latin-1") + text

    def without_server(self, error: Unreachable) -> Decision:
        if self.on_error:
            self.on_error(error)
        return Decision.without_server(self.on_failure, error)


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
        version, status = (yield LINE).split(None, 2)[:2]
        if version not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise ValueError(version)
        fields = yield from _read_fields()
        body = yield from _read_body(fields)
        return Reply(int(status), fields, body)
    except ValueError as error:
        raise Unreachable(f"the answer is no HTTP: {error}") from error


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


def hits_body(requests: Sequence[Request], *, together: bool) -> dict[str, Any]:
    return {"requests": [request.to_json() for request in requests], "together": together}


def _of_many(told: dict[str, Any]) -> Answer:
    return Decision.from_json(told, {}, b"") if "allowed" in told else Refused(told)


def _object(reply: Reply, member: str = "allowed") -> dict[str, Any]:
    """The JSON of a decision. Anything else is a refusal, if the request is at fault, or as good as no answer."""
    try:
        told = json.loads(reply.body)
    except ValueError:
        told = None
    if reply.status in (200, 429) and isinstance(told, dict) and member in told:
        return told
    if 400 <= reply.status < 500 and isinstance(told, dict) and "code" in told:
        raise Refused(told)
    raise Unreachable(f"the answer is no decision: {reply.status} {reply.body[:200]!r}")
