"""The same questions over the Redis protocol, with redis-py (`pip install tidegate[redis]`).

For applications that have redis-py and its connections anyway. Answers are five numbers: they make `Retry-After` and
`X-RateLimit-*`; the RateLimit fields of the draft need the limiter's policy, which only HTTP tells.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidegate import _http
from tidegate.decision import Answer, Decision, OnFailure, Refused, Request, Unreachable

# Half of the deadline is for connections that are refused; the other half for connecting, AUTH and the command.
STEPS_MAX = 3


class _Settings:
    def __init__(
        self,
        server: str,
        token: str | None,
        token_file: str | os.PathLike[str] | None,
        deadline: float,
        on_failure: OnFailure,
        on_error: Callable[[Unreachable], object] | None,
        options: dict[str, Any],
    ) -> None:
        if on_failure not in ("allow", "deny"):
            raise ValueError(f'on_failure {on_failure!r} is not known; use "allow" or "deny"')
        self.server, self.deadline, self.on_failure, self.on_error = server, deadline, on_failure, on_error
        step = deadline / 2 / STEPS_MAX
        self.options = {
            "password": _http.read_token(token, token_file),
            "protocol": 2,
            "socket_timeout": step,
            "socket_connect_timeout": step,
            # redis-py would send a command again after a timeout, and a hit would be charged twice.
            "retry_on_error": [],
            "driver_info": None,
            **options,
        }

    def without_server(self, error: Exception) -> Decision:
        unreachable = Unreachable(f"{error or 'no answer'} within {self.deadline} s")
        unreachable.__cause__ = error
        if self.on_error:
            self.on_error(unreachable)
        return Decision.without_server(self.on_failure, unreachable)


class Client:
    """Asks over the Redis protocol, for threads. `options` go to `redis.Redis`."""

    def __init__(
        self,
        server: str = "redis://127.0.0.1:7403",
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        deadline: float = _http.DEADLINE_S,
        on_failure: OnFailure = "allow",
        on_error: Callable[[Unreachable], object] | None = None,
        **options: Any,
    ) -> None:
        self._settings = _Settings(server, token, token_file, deadline, on_failure, on_error, options)
        self._redis: Any = redis.Redis.from_url(server, retry=Retry(NoBackoff(), 0), **self._settings.options)

    def hit(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """May this happen now? It is charged if so."""
        return self.ask(Request(limiter, key, cost=cost))

    def peek(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """Would a hit be allowed? Nothing is charged."""
        return self.ask(Request(limiter, key, cost=cost, peek=True))

    def ask(self, request: Request) -> Decision:
        """Any request, also by attributes."""
        command = _command(request)
        try:
            return _decision(request, self._send(lambda: self._redis.execute_command(*command)))
        except (redis.ResponseError, redis.AuthenticationError) as error:
            raise _refused(error) from error
        except (redis.RedisError, OSError) as error:
            return self._settings.without_server(error)

    def hits(self, requests: Sequence[Request]) -> list[Answer]:
        """Requests as one pipeline: one round trip, each decided by itself and answered in its place."""
        pipeline = self._redis.pipeline(transaction=False)
        for request in requests:
            pipeline.execute_command(*_command(request))
        try:
            replies = self._send(lambda: pipeline.execute(raise_on_error=False))
        except (redis.RedisError, OSError) as error:
            return [self._settings.without_server(error)] * len(requests)
        return [_answer(request, reply) for request, reply in zip(requests, replies, strict=True)]

    def close(self) -> None:
        """Closes the connections that are kept. Later calls open others."""
        self._redis.close()

    def _send(self, call: Callable[[], Any]) -> Any:
        """Tries again while the server refuses connections: then nothing was sent."""
        until, pause = time.monotonic() + self._settings.deadline / 2, _http.RETRY_PAUSE_S
        while True:
            try:
                return call()
            except redis.ConnectionError as error:
                if not _was_refused(error) or time.monotonic() + pause >= until:
                    raise
                time.sleep(pause)
                pause *= 2


class AsyncClient:
    """Asks over the Redis protocol, for asyncio. `options` go to `redis.asyncio.Redis`."""

    def __init__(
        self,
        server: str = "redis://127.0.0.1:7403",
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        deadline: float = _http.DEADLINE_S,
        on_failure: OnFailure = "allow",
        on_error: Callable[[Unreachable], object] | None = None,
        **options: Any,
    ) -> None:
        self._settings = _Settings(server, token, token_file, deadline, on_failure, on_error, options)
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        self._redis: Any = redis.asyncio.Redis.from_url(server, retry=retry, **self._settings.options)

    async def hit(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """May this happen now? It is charged if so."""
        return await self.ask(Request(limiter, key, cost=cost))

    async def peek(self, limiter: str, key: str, cost: int = 1) -> Decision:
        """Would a hit be allowed? Nothing is charged."""
        return await self.ask(Request(limiter, key, cost=cost, peek=True))

    async def ask(self, request: Request) -> Decision:
        """Any request, also by attributes."""
        command = _command(request)
        try:
            return _decision(request, await self._send(lambda: self._redis.execute_command(*command)))
        except (redis.ResponseError, redis.AuthenticationError) as error:
            raise _refused(error) from error
        except (redis.RedisError, OSError, asyncio.TimeoutError) as error:
            return self._settings.without_server(error)

    async def hits(self, requests: Sequence[Request]) -> list[Answer]:
        """Requests as one pipeline: one round trip, each decided by itself and answered in its place."""
        pipeline = self._redis.pipeline(transaction=False)
        for request in requests:
            pipeline.execute_command(*_command(request))
        try:
            replies = await self._send(lambda: pipeline.execute(raise_on_error=False))
        except (redis.RedisError, OSError, asyncio.TimeoutError) as error:
            return [self._settings.without_server(error)] * len(requests)
        return [_answer(request, reply) for request, reply in zip(requests, replies, strict=True)]

    async def close(self) -> None:
        """Closes the connections that are kept. Later calls open others."""
        await self._redis.aclose()

    async def _send(self, call: Callable[[], Any]) -> Any:
        return await asyncio.wait_for(self._try(call), self._settings.deadline)

    async def _try(self, call: Callable[[], Any]) -> Any:
        """Tries again while the server refuses connections: then nothing was sent."""
        pause = _http.RETRY_PAUSE_S
        while True:
            try:
                return await call()
            except redis.ConnectionError as error:
                if not _was_refused(error):
                    raise
                await asyncio.sleep(pause)
                pause *= 2


def _command(request: Request) -> list[Any]:
    if request.attributes is None:
        return ["TG.PEEK" if request.peek else "TG.HIT", request.limiter, request.key, request.cost]
    if request.peek:
        raise ValueError("TG.ATTR has no peek; use a cost of 0, or ask over HTTP")
    pairs = [text for pair in request.attributes.items() for text in pair]
    return ["TG.ATTR", request.domain or "", request.cost, *pairs]


def _decision(request: Request, reply: list[Any]) -> Decision:
    allowed, limit, remaining, retry_after_ms, reset_after_ms = reply[:5]
    named = reply[5] if len(reply) > 5 else request.limiter
    return Decision(
        allowed == 1,
        "ok" if allowed == 1 else "limited",
        limiter=named.decode() if isinstance(named, bytes) else named,
        limit=_known(limit),
        remaining=_known(remaining),
        retry_after_ms=_known(retry_after_ms),
        reset_after_ms=_known(reset_after_ms) if limit != -1 else None,
    )


def _answer(request: Request, reply: Any) -> Answer:
    return _refused(reply) if isinstance(reply, Exception) else _decision(request, reply)


def _known(number: int) -> int | None:
    return None if number == -1 else number


def _refused(error: Exception) -> Refused:
    return Refused({"status": 400, "code": "refused", "detail": str(error)})


def _was_refused(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ConnectionRefusedError) or "Connection refused" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
