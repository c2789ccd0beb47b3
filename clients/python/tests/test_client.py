"""The clients, over HTTP and RESP, with and without asyncio, play the same scenes against a real server."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
import threading
import time
import unittest
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from tests.server import DEADLINE, SLOWNESS, Server, drip, odd_server, within_deadline
from tidegate import AsyncClient, Client, Decision, Refused, Request, resp


class InLoop:
    """An asyncio client called as the others are, from an event loop that goes on between the calls."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: self._loop.run_until_complete(
            getattr(self._client, name)(*arguments, **named)
        )

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


def http(server: Server, **options: Any) -> Any:
    return Client(server.url, **options)


def http_async(server: Server, **options: Any) -> Any:
    return InLoop(AsyncClient(server.url, **options))


def redis(server: Server, **options: Any) -> Any:
    return resp.Client(server.redis, **options)


def redis_async(server: Server, **options: Any) -> Any:
    return InLoop(resp.AsyncClient(server.redis, **options))


def telling(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(answer)


BARE: tuple[Callable[..., Any], ...] = (Client, lambda *args, **options: InLoop(AsyncClient(*args, **options)))
"""By address, for servers that are none of ours."""
EVERY_CLIENT = (http, http_async, redis, redis_async)
OVER_HTTP = (http, http_async)
LONG: Any = {"deadline": 20 * SLOWNESS}
"""For what is about answers, and not about time."""


class WithServer(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        cls.addClassCleanup(cls.server.close)

    def each(self, makers: tuple[Callable[..., Any], ...], scene: Callable[[Any, str], None], **options: Any) -> None:
        for make in makers:
            with self.subTest(make.__name__):
                gate = make(self.server, **options)
                try:
                    scene(gate, f"{self.id()}-{make.__name__}")
                finally:
                    gate.close()


class Answers(WithServer):
    def test_hits_are_charged_until_the_limit(self) -> None:
        def scene(gate: Any, key: str) -> None:
            self.assertEqual(gate.peek("api", key).remaining, 3)
            self.assertEqual([gate.hit("api", key).remaining for _ in range(2)], [2, 1])
            self.assertFalse(gate.hit("api", key, cost=2).allowed)
            last = gate.hit("api", key)
            self.assertEqual((last.allowed, last.limit, last.remaining, last.limiter), (True, 3, 0, "api"))
            denied = gate.hit("api", key)
            self.assertEqual((denied.allowed, denied.reason, denied.status), (False, "limited", 429))
            self.assertTrue(1_000_000 < denied.retry_after_ms <= 1_200_000, denied)

        self.each(EVERY_CLIENT, scene, **LONG)

    def test_attributes_are_charged_together(self) -> None:
        def scene(gate: Any, key: str) -> None:
            def ask(user: str) -> Decision:
                told: Decision = gate.ask(Request(domain="login", attributes={"user": user, "ip": key}))
                return told

            told = [ask(f"{key}-1"), ask(f"{key}-1"), ask(f"{key}-1"), ask(f"{key}-2"), ask(f"{key}-3")]
            self.assertEqual([each.allowed for each in told], [True, True, False, True, False])
            self.assertEqual((told[2].limiter, told[4].limiter), ("login-user", "login-ip"))

        self.each(EVERY_CLIENT, scene, **LONG)

    def test_batches(self) -> None:
        def scene(gate: Any, key: str) -> None:
            told = gate.hits([Request("api", key), Request("unknown", key), Request("api", key, cost=9)])
            self.assertEqual((told[0].remaining, told[2].allowed), (2, False))
            self.assertIsInstance(told[1], Refused)

        self.each(EVERY_CLIENT, scene, **LONG)

    def test_together(self) -> None:
        def scene(gate: Any, key: str) -> None:
            both = [Request("api", key, cost=2), Request("hundred", key)]
            self.assertTrue(gate.hits_together(both).allowed)
            denied = gate.hits_together(both)
            self.assertEqual((denied.allowed, len(denied.answers)), (False, 2))
            self.assertEqual(gate.peek("hundred", key).remaining, 99, "nothing was charged by the second")

        self.each(OVER_HTTP, scene, **LONG)

    def test_header_fields_are_those_of_the_server(self) -> None:
        def scene(gate: Any, key: str) -> None:
            fields = dict(gate.hit("api", key, cost=3).headers(legacy=True))
            self.assertEqual(fields["RateLimit-Policy"], '"api";q=3;w=3600')
            self.assertEqual(fields["RateLimit"], '"api";r=0;t=3600')
            self.assertEqual((fields["X-RateLimit-Limit"], fields["X-RateLimit-Reset"]), ("3", "3600"))
            denied = gate.hit("api", key)
            fields = dict(denied.headers(legacy=True))
            self.assertEqual(fields["Retry-After"], fields["X-RateLimit-Reset"])
            self.assertIn(b'"violated-policies":["api"]', denied.body())
            self.assertNotIn("X-RateLimit-Limit", dict(denied.headers()))

        self.each(OVER_HTTP, scene, **LONG)

    def test_what_the_server_refuses_is_never_allowed(self) -> None:
        def scene(gate: Any, key: str) -> None:
            for limiter, asked in (("unknown", key), ("api", "k" * 513), ("api", "")):
                with self.assertRaises(Refused):
                    gate.hit(limiter, asked)
            self.assertTrue(gate.hit("api", key).allowed, "the connection is still good")

        self.each(EVERY_CLIENT, scene, on_failure="allow", **LONG)

    def test_a_name_is_looked_up(self) -> None:
        for make in BARE:
            gate = make(self.server.url.replace("127.0.0.1", "localhost"), on_failure="deny", **LONG)
            self.assertEqual(gate.hit("hundred", "name").limit, 100)
            gate.close()

    def test_many_threads(self) -> None:
        for make in (http, redis):
            gate = make(self.server, **LONG)
            with self.subTest(make.__name__), ThreadPoolExecutor(8) as threads:
                told = list(threads.map(lambda _, gate=gate: gate.hit("hundred", f"{gate}"), range(160)))
                self.assertEqual(sum(each.allowed for each in told), 100)
            gate.close()

    def test_many_tasks(self) -> None:
        async def scene() -> None:
            async with AsyncClient(self.server.url, **LONG) as gate:
                told = await asyncio.gather(*(gate.hit("hundred", "tasks") for _ in range(160)))
                self.assertEqual(sum(each.allowed for each in told), 100)

        asyncio.run(scene())

    def test_connections_are_used_again(self) -> None:
        def opened() -> int:
            with urllib.request.urlopen(f"{self.server.url}/metrics") as page:
                lines = page.read().decode().splitlines()
            return int(next(line for line in lines if line.startswith("tidegate_http_connections_total ")).split()[1])

        def scene(gate: Any, key: str) -> None:
            before = opened()
            for _ in range(20):
                gate.hit("hundred", key)
            self.assertEqual(opened() - before, 2, "one for twenty hits, and one for the metrics")

        self.each(OVER_HTTP, scene, **LONG)

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_forked_process_has_connections_of_its_own(self) -> None:
        gate = Client(self.server.url, **LONG)
        gate.hit("hundred", "fork")
        child = os.fork()
        if child == 0:
            os._exit(0 if [gate.hit("hundred", "fork").allowed for _ in range(20)] == [True] * 20 else 1)
        told = [gate.hit("hundred", "fork").allowed for _ in range(20)]
        self.assertEqual((os.waitpid(child, 0)[1], told), (0, [True] * 20))
        self.assertEqual(gate.peek("hundred", "fork").remaining, 59)
        gate.close()

    def test_settings_that_make_no_sense(self) -> None:
        nonsense: tuple[Any, ...] = (
            {"on_failure": "maybe"},
            {"deadline": 0},
            {"server": "gate.example"},
            {"token": "a\r\nb"},
        )
        for options in nonsense:
            with self.subTest(options), self.assertRaises(ValueError):
                Client(**options)


class Tokens(unittest.TestCase):
    def test_a_token_is_shown(self) -> None:
        server = Server(tokens=True)
        self.addCleanup(server.close)
        for make in EVERY_CLIENT:
            with self.subTest(make.__name__):
                for right in ({"token": server.token}, {"token_file": server.path("token")}):
                    gate = make(server, **right, **LONG)
                    self.assertTrue(gate.hit("hundred", "u1").allowed)
                    gate.close()
                with mock.patch.dict(os.environ, {"TIDEGATE_TOKEN": server.token}):
                    gate = make(server, **LONG)
                self.assertTrue(gate.hit("hundred", "u1").allowed)
                gate.close()
                gate = make(server, token="tg_wrong", **LONG)
                with self.assertRaises(Refused):
                    gate.hit("hundred", "u1")
                with self.assertRaises(Refused):
                    gate.hits([Request("hundred", "u1")])
                gate.close()
                gate = make(server, **LONG)
                with self.assertRaises(Refused):
                    gate.hits([Request("hundred", "u1")])
                gate.close()

    def test_tls(self) -> None:
        server = Server(tls=True)
        self.addCleanup(server.close)
        trusted = ssl.create_default_context(cafile=server.path("cert.pem"))
        for make in OVER_HTTP:
            with self.subTest(make.__name__):
                gate = make(server, ssl_context=trusted, **LONG)
                self.assertEqual([gate.hit("hundred", make.__name__).remaining for _ in range(3)], [99, 98, 97])
                gate.close()
                gate = make(server, on_failure="deny", **LONG)
                self.assertEqual(gate.hit("hundred", "u1").reason, "unreachable", "nobody vouches for it")
                gate.close()


class Failures(WithServer):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)

    def test_killed_and_restarted(self) -> None:
        errors: list[Exception] = []
        for make in EVERY_CLIENT:
            with self.subTest(make.__name__):
                opened = make(self.server, deadline=DEADLINE, on_failure="allow", on_error=errors.append)
                closed = make(self.server, deadline=DEADLINE, on_failure="deny")
                # What the machine needs to begin with is not the server's time to answer.
                self.assertTrue(opened.hit("hundred", make.__name__) and closed.hit("hundred", make.__name__))
                errors.clear()
                self.server.kill()
                for _ in range(3):
                    with within_deadline():
                        told = opened.hit("hundred", "u1")
                    self.assertEqual((told.allowed, told.reason, told.limit), (True, "unreachable", None))
                    with within_deadline():
                        told = closed.hit("hundred", "u1")
                    self.assertEqual((told.allowed, told.status, told.retry_after_ms), (False, 503, 1000))
                    self.assertIn(("Retry-After", "1"), told.headers())
                    self.assertIn(b"temporary-reduced-capacity", told.body())
                self.assertEqual(len(errors), 3)
                self.server.start()
                for gate in (opened, closed):
                    self.assertEqual(self.answered(gate).limit, 100)
                    gate.close()

    def answered(self, gate: Any) -> Decision:
        """By the server, which may be slow to begin with."""
        for _ in range(20):
            told: Decision = gate.hit("hundred", "again")
            if told.reason != "unreachable":
                break
        return told

    def test_a_refused_connection_is_tried_again(self) -> None:
        for make in EVERY_CLIENT:
            with self.subTest(make.__name__):
                gate = make(self.server, on_failure="deny", **LONG)
                self.server.kill()
                restart = threading.Timer(0.2, self.server.start)
                restart.start()
                self.assertTrue(gate.hit("hundred", "u1").allowed)
                restart.join()
                gate.close()

    def test_stopped_it_is_no_hang_and_nothing_is_charged_twice(self) -> None:
        for make in EVERY_CLIENT:
            with self.subTest(make.__name__):
                gate = make(self.server, deadline=DEADLINE, on_failure="deny")
                key = make.__name__
                self.assertIsNotNone(gate.hit("hundred", key))
                before = self.left(key)
                with self.server.stopped():
                    for _ in range(3):
                        with within_deadline():
                            self.assertEqual(gate.hit("hundred", key).reason, "unreachable")
                time.sleep(0.2)  # for what lies in sockets to be read, if it is
                self.assertGreaterEqual(self.left(key), before - 3)
                gate.close()

    def left(self, key: str) -> int:
        with Client(self.server.url, **LONG) as other:
            return other.peek("hundred", key).remaining or 0

    def test_an_answer_that_never_ends_is_no_hang(self) -> None:
        for make in BARE:
            with odd_server(drip) as (url, _):
                gate = make(url, deadline=DEADLINE, on_failure="deny")
                with within_deadline():
                    self.assertEqual(gate.hit("api", "u1").reason, "unreachable")
                gate.close()

    def test_a_name_that_is_not_looked_up_in_time_is_no_hang(self) -> None:
        def slow(*_arguments: Any, **_named: Any) -> Any:
            ended.wait(20 * SLOWNESS)
            raise OSError("no such name")

        for make in BARE:
            ended = threading.Event()
            with mock.patch("socket.getaddrinfo", slow):
                gate = make("http://gate.example", deadline=DEADLINE, on_failure="deny")
                with within_deadline():
                    self.assertEqual(gate.hit("api", "u1").reason, "unreachable")
                ended.set()
            gate.close()

    def test_what_was_sent_is_never_sent_again(self) -> None:
        for make in BARE:
            with odd_server(lambda connection: None) as (url, read):
                gate = make(url, on_failure="allow", **LONG)
                self.assertEqual(gate.hit("api", "u1").reason, "unreachable")
                self.assertEqual(len(read), 1)
                gate.close()

    def test_answers_that_are_no_decision(self) -> None:
        answers = (
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno!",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"SSH-2.0-OpenSSH\r\n",
        )
        for make, answer in itertools.product(BARE, answers):
            with self.subTest(answer), odd_server(telling(answer)) as (url, _):
                gate = make(url, on_failure="allow", **LONG)
                self.assertEqual(gate.hit("api", "u1").reason, "unreachable")
                gate.close()

    def test_an_answer_in_chunks(self) -> None:
        body = b'{"allowed":true,"reason":"ok",', b'"limit":5}'
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in body)
        answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        for make in BARE:
            with odd_server(telling(answer)) as (url, _):
                gate = make(url, **LONG)
                self.assertEqual(gate.hit("api", "u1").limit, 5)
                gate.close()


if __name__ == "__main__":
    unittest.main()
