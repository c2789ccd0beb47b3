"""The same questions over the Redis protocol, with redis-py (`pip install tidegate[redis]`).

For applications that have redis-py and its connections anyway. Answers are five numbers: they make `Retry-After` and
`X-RateLimit-*`; the RateLimit fields of the draft need the limiter's policy, which only HTTP tells.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidegate import _http
from tidegate.decision import Answer, Decision, OnFailure, Refused, Request, Unreachable

REFUSALS = (redis.ResponseError, redis.AuthenticationError)


class _Settings(_http.Failing):
    def __init__(
        self,
        token: str | None,
        token_file: str | os.PathLike[str] | None,
        deadline: float,
        on_failure: OnFailure,
        on_error: Callable[[Unreachable], object] | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(deadline, on_failure, on_error)
        self.options = {
            "password": _http.read_token(token, token_file),
            "protocol": 2,
            "socket_timeout": deadline,
            "socket_connect_timeout": deadline,
            # redis-py would send a command again after a timeout, and a hit would be charged twice.
            "retry_on_error": [],
            "driver_info": None,
            **options,
        }

    def no_answer(self, error: Exception) -> Decision:
        unreachable = Unreachable(f"{error or 'no answer'} within {self.deadline} s")
        unreachable.__cause__ = error
        return self.without_server(unreachable)


class _Deadline(threading.local):
    """When the call of this thread ends. redis-py bounds each read and each write alone; this bounds them all."""

    until = 0.0

    def left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer")
        return left


class _Socket:
    """A socket of redis-py, each of whose steps has what is left until the deadline, or less if redis-py says so."""

    def __init__(self, inner: socket.socket, deadline: _Deadline) -> None:
        self._inner, self._deadline = inner, deadline
        self._timeout: float | None = None

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def recv(self, *arguments: Any) -> bytes:
        return self._bounded().recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        return self._bounded().recv_into(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self._bounded().sendall(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _bounded(self) -> socket.socket:
        if self._timeout != 0:  # 0 looks whether there is something to read, and never waits
            left = self._deadline.left()
            self._inner.settimeout(left if self._timeout is None else min(left, self._timeout))
        else:
            self._inner.settimeout(0)
        return self._inner


def _bounded_by(deadline: _Deadline, kind: Any) -> Any:
    """A kind of redis-py's connections, within the deadline."""

    class Bounded(kind):  # type: ignore[misc]
        def _connect(self) -> Any:
            whole = self.socket_timeout  # type: ignore[has-type]
            self.socket_connect_timeout = self.socket_timeout = deadline.left()
            try:
                return _Socket(super()._connect(), deadline)
            finally:
                self.socket_timeout = whole  # of the calls that come

    return Bounded


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
        self._settings = _Settings(token, token_file, deadline, on_failure, on_error, options)
        self._deadline = _Deadline()
        self._redis: Any = redis.Redis.from_url(server, retry=Retry(NoBackoff(), 0), **self._settings.options)
        pool = self._redis.connection_pool
        pool.connection_class = _bounded_by(self._deadline, pool.connection_class)

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
        except REFUSALS as error:
            raise _refused(error) from error
        except (redis.RedisError, OSError) as error:
            return self._settings.no_answer(error)

    def hits(self, requests: Sequence[Request]) -> list[Answer]:
        """Requests as one pipeline: one round trip, each decided by itself and answered in its place."""
        pipeline = self._redis.pipeline(transaction=False)
        for request in requests:
            pipeline.execute_command(*_command(request))
        try:
            return _answers(requests, self._send(lambda: pipeline.execute(raise_on_error=False)))
        except REFUSALS as error:
            raise _refused(error) from error
        except (redis.RedisError, OSError) as error:
            return [self._settings.no_answer(error)] * len(requests)

    def close(self) -> None:
        """Closes the connections that are kept. Later calls open others."""
        self._redis.close()

    def _send(self, call: Callable[[], Any]) -> Any:
        """Tries again while the server refuses connections: then nothing was sent."""
        self._deadline.until = time.monotonic() + self._settings.deadline
        pause = _http.RETRY_PAUSE_S
        while True:
            try:
                return call()
            except redis.ConnectionError as error:
                if not _was_refused(error) or time.monotonic() + pause >= self._deadline.until:
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
        self._settings = _Settings(token, token_file, deadline, on_failure, on_error, options)
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
        except REFUSALS as error:
            raise _refused(error) from error
        except (redis.RedisError, OSError, asyncio.TimeoutError) as error:
            return self._settings.no_answer(error)

    async def hits(self, requests: Sequence[Request]) -> list[Answer]:
        """Requests as one pipeline: one round trip, each decided by itself and answered in its place."""
        pipeline = self._redis.pipeline(transaction=False)
        for request in requests:
            pipeline.execute_command(*_command(request))
        try:
            return _answers(requests, await self._send(lambda: pipeline.execute(raise_on_error=False)))
        except REFUSALS as error:
            raise _refused(error) from error
        except (redis.RedisError, OSError, asyncio.TimeoutError) as error:
            return [self._settings.no_answer(error)] * len(requests)

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


def _answers(requests: Sequence[Request], replies: list[Any]) -> list[Answer]:
    """Each in its place; a token that is refused is refused for all of them, as over HTTP."""
    for reply in replies:
        if isinstance(reply, redis.AuthenticationError):
            raise reply
    return [_answer(request, reply) for request, reply in zip(requests, replies, strict=True)]


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
