"""What is asked, and what is answered: plain values, the same over every protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

OnFailure: TypeAlias = Literal["allow", "deny"]
Count: TypeAlias = Literal["all", "failures", "successes"]
Outcome: TypeAlias = Literal["settled", "not_reserved", "nothing", "unknown"]

RETRY_AFTER_FAILURE_MS = 1000
_PASSED_ON = ("RateLimit-Policy", "RateLimit", "Retry-After")


class Unreachable(Exception):
    """The server gave no decision within the deadline. Hits turn it into a decision by `on_failure`."""


class Refused(Exception):
    """The server refuses the request itself: an unknown limiter, a key that is too long, a token that may not.

    It is never taken for a failure of the server: otherwise a visitor with too long a name would never be limited.
    """

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.status: int = problem.get("status", 0)
        self.code: str = problem.get("code", "")
        self.detail: str = problem.get("detail", "")
        super().__init__(f"{self.status} {self.code}: {self.detail}")


@dataclass(frozen=True, slots=True)
class Request:
    """One limiter by name and key, or every limiter of a domain that the attributes match, charged together."""

    limiter: str | None = None
    key: str | None = None
    attributes: Mapping[str, str] | None = None
    domain: str | None = None
    cost: int = 1
    peek: bool = False

    def to_json(self) -> dict[str, Any]:
        members = {name: getattr(self, name) for name in ("limiter", "key", "domain", "cost")}
        told = {name: value for name, value in members.items() if value is not None}
        if self.attributes is not None:
            told["attributes"] = dict(self.attributes)
        return told | {"peek": True} if self.peek else told


@dataclass(frozen=True, slots=True)
class Decision:
    """The server's answer, or one made by `on_failure` when there was none (then `error` says why)."""

    allowed: bool
    reason: str
    limiter: str | None = None
    limit: int | None = None
    remaining: int | None = None
    retry_after_ms: int | None = None
    reset_after_ms: int | None = None
    degraded: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)
    """RateLimit, RateLimit-Policy and Retry-After as the server sent them."""
    problem: bytes = field(default=b"", repr=False)
    """Of a denial: its application/problem+json body."""
    error: Unreachable | None = None
    reservation: str | None = None
    """Of a `reserve`: its name, for `commit` and `cancel`. `None` where there is nothing to give back."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any], fields: Mapping[str, str], problem: bytes) -> Decision:
        numbers = {name: told.get(name) for name in ("limit", "remaining", "retry_after_ms", "reset_after_ms")}
        kept = {name: fields[name.lower()] for name in _PASSED_ON if name.lower() in fields}
        return cls(
            told["allowed"],
            told.get("reason", ""),
            limiter=told.get("limiter"),
            reservation=told.get("reservation"),
            degraded=told.get("degraded"),
            fields=kept,
            problem=b"" if told["allowed"] else problem,
            **numbers,
        )

    @classmethod
    def without_server(cls, on_failure: OnFailure, error: Unreachable) -> Decision:
        if on_failure == "allow":
            return cls(True, "unreachable", error=error)
        return cls(False, "unreachable", retry_after_ms=RETRY_AFTER_FAILURE_MS, error=error)

    @property
    def status(self) -> int:
        """The HTTP status of a denial: 429, or 503 when it was made without the server."""
        return 503 if self.error else 429

    def headers(self, *, legacy: bool = False) -> list[tuple[str, str]]:
        """The header fields for the application's own answer; `legacy` adds `X-RateLimit-*`."""
        told = dict(self.fields)
        if not self.allowed and self.retry_after_ms is not None:
            told.setdefault("Retry-After", str(_seconds(self.retry_after_ms)))
        wait_ms = self.reset_after_ms if self.allowed else self.retry_after_ms
        if legacy and self.limit is not None and self.remaining is not None:
            told["X-RateLimit-Limit"] = str(self.limit)
            told["X-RateLimit-Remaining"] = str(self.remaining)
            if wait_ms is not None:
                told["X-RateLimit-Reset"] = str(_seconds(wait_ms))
        return list(told.items())

    def body(self) -> bytes:
        """The body of a denial, as application/problem+json."""
        if self.problem:
            return self.problem
        kind, title = (
            ("temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints")
            if self.error
            else ("quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded")
        )
        uri = f"https://iana.org/assignments/http-problem-types#{kind}"
        return json.dumps({"type": uri, "title": title, "status": self.status}).encode()


Answer: TypeAlias = "Decision | Refused"
"""Of one request in a batch: a refused one does not keep the others from being decided."""


@dataclass(frozen=True, slots=True)
class Together:
    """Several requests that were charged together, if `allowed`, or not at all."""

    allowed: bool
    answers: Sequence[Decision]


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a `commit` or a `cancel`.

    `"settled"`: the rest is given back. `"not_reserved"`: it had ended before, and what it had charged stays.
    `"nothing"`: there was no reservation, and nothing was sent. `"unknown"`: no answer came, and `error` says why.
    """

    outcome: Outcome
    cost: int | None = None
    given_back: int | None = None
    excess: int | None = None
    error: Unreachable | None = None


def is_counted(count: Count, status: int | None) -> bool:
    """Whether a request that ended with this HTTP status is to stay charged; `None`: the application raised."""
    return (status is None or status >= 400) == (count == "failures")


def check_count(count: Count, gate: object) -> None:
    if count not in ("all", "failures", "successes"):
        raise ValueError(f'count {count!r} is not known; use "all", "failures" or "successes"')
    if count != "all" and not hasattr(gate, "reserve"):
        raise ValueError(f'count "{count}" reserves, over HTTP only; use tidegate.Client or tidegate.AsyncClient')


def reserved(request: Request) -> tuple[str, str, int]:
    """What to reserve for a request."""
    if request.limiter is None or request.key is None or request.peek:
        raise ValueError('counting only failures or only successes needs a limiter and a key, and no "peek"')
    return request.limiter, request.key, request.cost


def _seconds(ms: int) -> int:
    """Rounded up: never tell a client to come too early."""
    return -(-ms // 1000)
