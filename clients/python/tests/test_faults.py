"""What once went wrong: each test is a fault that was found, told in its first lines."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.server import DEADLINE, SLOWNESS, Server, odd_server, within_deadline
from tests.test_client import BARE, EVERY_CLIENT, LONG, InLoop
from tidegate import AsyncClient, Client, Request, client, resp

OVER_RESP: tuple[Callable[..., Any], ...] = (
    resp.Client,
    lambda *args, **options: InLoop(resp.AsyncClient(*args, **options)),
)
ALLOWED = b'{"allowed":true,"reason":"ok","limit":5}'


def told(body: bytes, status: bytes = b"200 OK", version: bytes = b"HTTP/1.1", fields: bytes = b"") -> bytes:
    return b"%s %s\r\nContent-Length: %d\r\n%s\r\n%s" % (version, status, len(body), fields, body)


@contextmanager
def talking_server(talk: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[None]]]:
    """`talk` has each connection to itself, from its beginning; gives the address, and one entry a connection."""
    opened: list[None] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def run(connection: socket.socket) -> None:
        with connection:
            try:
                talk(connection)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            opened.append(None)
            threading.Thread(target=run, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", opened
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def accepted(listener: socket.socket) -> socket.socket:
    listener.listen()
    return listener.accept()[0]


class Faults(unittest.TestCase):
    def test_a_late_deny_over_resp_is_a_deny(self) -> None:
        """A read had a sixth of the deadline: a denial that came later was taken for no answer, and allowed."""

        def late(connection: socket.socket) -> None:
            while connection.recv(1 << 16):
                time.sleep(DEADLINE / 3)
                connection.sendall(b"*5\r\n:0\r\n:5\r\n:0\r\n:1000\r\n:1000\r\n")

        for make in OVER_RESP:
            with talking_server(late) as (address, _):
                gate = make(f"redis://{address}", deadline=DEADLINE, on_failure="allow", health_check_interval=0)
                self.assertEqual((gate.hit("api", "u1").reason, gate.hit("api", "u1").allowed), ("limited", False))
                gate.close()

    def test_a_connection_that_was_late_is_not_slow_for_ever(self) -> None:
        """What was left of the call that connected would be the timeout of every later read on this connection."""
        deadline = 2 * DEADLINE

        def talk(connection: socket.socket) -> None:
            pause = 0.0
            with connection:
                while connection.recv(1 << 16):
                    time.sleep(pause)
                    connection.sendall(b"*5\r\n:1\r\n:5\r\n:4\r\n:-1\r\n:1000\r\n")
                    pause = 0.7 * deadline

        for make in OVER_RESP:
            with socket.socket() as reserved:
                reserved.bind(("127.0.0.1", 0))  # refuses connections, as nobody listens yet
                gate = make(f"redis://127.0.0.1:{reserved.getsockname()[1]}", deadline=deadline, on_failure="deny")
                accepting = threading.Timer(0.4 * deadline, lambda listener=reserved: talk(accepted(listener)))
                accepting.start()
                self.assertEqual(gate.hit("api", "u1").reason, "ok")
                self.assertEqual(gate.hit("api", "u1").reason, "ok")
                gate.close()
                accepting.join()

    def test_an_answer_over_resp_that_never_ends_is_no_hang(self) -> None:
        """Each read had a timeout, and the call had none: a byte now and then held it up for ever."""

        def drip(connection: socket.socket) -> None:
            connection.recv(1 << 16)
            for _ in range(10_000):
                connection.sendall(b"*" if _ == 0 else b"0")
                time.sleep(0.02)

        for make in OVER_RESP:
            with talking_server(drip) as (address, _):
                gate = make(f"redis://{address}", deadline=DEADLINE, on_failure="deny")
                with within_deadline():
                    self.assertEqual(gate.hit("api", "u1").reason, "unreachable")
                with within_deadline():
                    self.assertEqual(gate.hits([Request("api", "u1")] * 3)[2].reason, "unreachable")
                gate.close()

    def test_deadlines_that_make_no_sense(self) -> None:
        for make in (Client, AsyncClient, resp.Client, resp.AsyncClient):
            for deadline in (0, -1, float("inf"), float("nan")):
                with self.subTest(f"{make} {deadline}"), self.assertRaises(ValueError):
                    make(deadline=deadline)

    def test_bytes_that_nobody_asked_for_are_no_answer(self) -> None:
        """A proxy says 408 on an idle connection; it was taken for the answer to the next hit."""
        late = told(b'{"status":408,"code":"timeout","detail":""}', b"408 Request Timeout")

        def talk(connection: socket.socket) -> None:
            if connection.recv(1 << 16):
                connection.sendall(told(ALLOWED))
                time.sleep(0.1)
                connection.sendall(late)
                time.sleep(0.1)

        def at_once(connection: socket.socket) -> None:
            if connection.recv(1 << 16):
                connection.sendall(told(ALLOWED) + late)
                connection.recv(1 << 16)

        for talker in (talk, at_once):
            for make in BARE:
                with talking_server(talker) as (address, opened):
                    gate = make(f"http://{address}", on_failure="deny", **LONG)
                    self.assertEqual(gate.hit("api", "u1").limit, 5)
                    time.sleep(0.3)
                    self.assertEqual(gate.hit("api", "u1").limit, 5)
                    self.assertGreaterEqual(len(opened), 2)
                    gate.close()

    def test_what_comes_before_the_answer_is_not_the_answer(self) -> None:
        """100 and 103 were taken for the answer."""
        answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + told(ALLOWED)
        for make in BARE:
            with odd_server(lambda connection: connection.sendall(answer)) as (url, _):
                gate = make(url, **LONG)
                self.assertEqual(gate.hit("api", "u1").limit, 5)
                gate.close()

    def test_http_1_0_does_not_keep_connections(self) -> None:
        def talk(connection: socket.socket) -> None:
            connection.recv(1 << 16)
            connection.sendall(told(ALLOWED, version=b"HTTP/1.0"))
            connection.recv(1 << 16)  # it stays open, and answers nothing more

        for make in BARE:
            with talking_server(talk) as (address, opened):
                gate = make(f"http://{address}", on_failure="deny", **LONG)
                self.assertEqual([gate.hit("api", "u1").limit for _ in range(3)], [5, 5, 5])
                self.assertEqual(len(opened), 3)
                gate.close()

    def test_a_callback_that_raises_does_not_decide(self) -> None:
        """It raised out of `hit`: the limiter's failure became the application's, though it was set to allow."""

        def raising(_: Exception) -> None:
            raise RuntimeError("the callback's own fault")

        server = Server()
        self.addCleanup(server.close)
        server.kill()
        for make in EVERY_CLIENT:
            gate = make(server, deadline=DEADLINE, on_failure="allow", on_error=raising)
            with self.subTest(make.__name__), self.assertLogs("tidegate", "ERROR") as logged:
                self.assertTrue(gate.hit("api", "u1").allowed)
                self.assertIn("the callback's own fault", logged.output[0])
            gate.close()
        server.start()

    def test_lookups_that_hang_neither_pile_up_nor_block_others(self) -> None:
        """One thread did all lookups: one that hung held up those after it."""
        ended, answers = threading.Event(), socket.getaddrinfo
        hang = [True]

        def slow(*arguments: Any, **named: Any) -> Any:
            if hang[0]:
                ended.wait(60 * SLOWNESS)
            return answers("127.0.0.1", *arguments[1:], **named)

        server = Server()
        self.addCleanup(server.close)
        with mock.patch("socket.getaddrinfo", slow):
            gate = Client(server.url.replace("127.0.0.1", "localhost"), deadline=DEADLINE, on_failure="deny")
            self.assertEqual(gate.hit("hundred", "l").reason, "unreachable")
            hang[0] = False
            gate = self.answered(gate)
            hang[0] = True
            gate.close()
            for _ in range(client.LOOKUPS_MAX + 3):
                with within_deadline():
                    gate.hit("hundred", "l")
            hanging = [thread for thread in threading.enumerate() if thread.name == "tidegate-lookup"]
            self.assertLessEqual(len(hanging), client.LOOKUPS_MAX)
            self.assertTrue(all(thread.daemon for thread in hanging), "no process waits for them")
            ended.set()
            hang[0] = False
            self.answered(gate).close()

    def answered(self, gate: Client) -> Client:
        for _ in range(20):
            if gate.hit("hundred", "l").limit == 100:
                return gate
        self.fail("no answer")

    def test_an_address_that_does_not_answer_leaves_time_for_the_next(self) -> None:
        """The first address of a name had all of the time, and a server at the second was not reached."""
        server = Server()
        self.addCleanup(server.close)
        port = int(server.url.rpartition(":")[2])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.3", "127.0.0.1")]
        known = socket.getaddrinfo

        def look_up(host: Any, *arguments: Any, **named: Any) -> Any:
            return found if host == "localhost" else known(host, *arguments, **named)

        with socket.create_server(("127.0.0.3", port), backlog=0), ExitStack() as held:
            for _ in range(4):  # it takes one connection or two, and the next ones wait
                waiting = held.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.3", port))
            with mock.patch("socket.getaddrinfo", look_up):
                for make in BARE:
                    gate = make(f"http://localhost:{port}", deadline=4 * SLOWNESS, on_failure="deny")
                    self.assertEqual(gate.hit("hundred", "u1").limit, 100)
                    gate.close()

    def test_a_process_ends_though_a_lookup_hangs(self) -> None:
        """The interpreter waited for the lookup's thread, and asyncio.run for its executor's."""
        hanging = "import asyncio, socket, time, tidegate\nsocket.getaddrinfo = lambda *a, **k: time.sleep(60)\n"
        hits = (
            "hit = tidegate.Client('http://gate.example', deadline=0.1).hit('api', 'u1')\n",
            "hit = asyncio.run(tidegate.AsyncClient('http://gate.example', deadline=0.1).hit('api', 'u1'))\n",
        )
        for hit in hits:
            program = [sys.executable, "-c", f"{hanging}{hit}print(hit.reason)"]
            done = subprocess.run(program, capture_output=True, text=True, timeout=30 * SLOWNESS)
            self.assertEqual((done.stdout, done.returncode), ("unreachable\n", 0), done.stderr)

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_fork_while_a_lock_is_held(self) -> None:
        """The child inherited a lock that no thread of it would ever release."""
        server = Server()
        self.addCleanup(server.close)
        gate = Client(server.url, **LONG)
        with gate._pool._lock:
            child = os.fork()
            if child == 0:
                threading.Timer(10 * SLOWNESS, lambda: os._exit(2)).start()
                os._exit(0 if gate.hit("hundred", "fork").allowed else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        gate.close()

    def test_another_event_loop_leaves_no_connection_behind(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        gate = AsyncClient(server.url, **LONG)

        async def some() -> None:
            await asyncio.gather(*(gate.hit("hundred", "loops") for _ in range(5)))

        def connected() -> int:
            with urllib.request.urlopen(f"{server.url}/metrics") as page:
                lines = page.read().decode().splitlines()
            return int(next(line for line in lines if line.startswith("tidegate_http_connections ")).split()[1])

        asyncio.run(some())
        self.assertGreaterEqual(connected(), 6)

        async def one() -> int:
            await gate.hit("hundred", "loops")
            for _ in range(100):
                if (left := connected()) <= 2:
                    break
                await asyncio.sleep(0.02)
            await gate.close()
            return left

        self.assertLessEqual(asyncio.run(one()), 2, "its own, and the one that asks for metrics")


if __name__ == "__main__":
    unittest.main()
