#!/usr/bin/env python3
"""Writes what a version of `tidegate` leaves behind: `write.py PATH-OF-THE-BINARY FOLDER`.

For the versions that come after it: `main.rs` reads the folder. A snapshot and journals by `[store] path`, the keys of a
Redis as the commands that bring them back (for `redis-cli --pipe`), and what that version itself said of its keys.
"""
import json, os, shutil, signal, socket, subprocess, sys, tempfile, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))


def main(binary, folder):
    os.makedirs(folder, exist_ok=True)
    policy = open(f"{HERE}/policy.toml").read()
    with tempfile.TemporaryDirectory() as temporary:
        embedded(binary, policy, temporary, folder)
        on_redis(binary, policy, temporary, folder)


def embedded(binary, policy, temporary, folder):
    server = Server(binary, policy + f'\n[store]\npath = "{temporary}/data"\n', temporary)
    server.use()
    answers = server.answers()
    server.stop()
    shutil.copy(f"{temporary}/data/snapshot", f"{folder}/snapshot")
    for stream in ("orders", "once"):
        os.makedirs(f"{folder}/streams/{stream}", exist_ok=True)
        for name in os.listdir(f"{temporary}/data/streams/{stream}"):
            shutil.copy(f"{temporary}/data/streams/{stream}/{name}", f"{folder}/streams/{stream}/{name}")
    write(f"{folder}/embedded.txt", answers)


def on_redis(binary, policy, temporary, folder):
    port = free_port()
    redis = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--dir", temporary],
                             stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        pause = open(f"{HERE}/pause.toml").read()
        store = f'\n[store]\nkind = "redis"\nurl = "redis://127.0.0.1:{port}"\n'
        server = Server(binary, policy + pause + store, temporary)
        server.use("paused")
        answers = server.answers("paused")
        server.stop()
        commands = b"".join(restoring(port))
        open(f"{folder}/redis.resp", "wb").write(commands)
        write(f"{folder}/redis.txt", answers)
    finally:
        redis.terminate()
        redis.wait()


class Server:
    def __init__(self, binary, config, temporary):
        self.port = free_port()
        path = f"{temporary}/tidegate.toml"
        open(path, "w").write(config + f'\n[doors]\nhttp = "127.0.0.1:{self.port}"\n')
        self.process = subprocess.Popen([binary, "serve", "--config", path], stderr=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL)
        wait_for(self.port)

    def ask(self, method, path, body=None):
        data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def limiters(self):
        return [limiter["name"] for limiter in json.loads(self.ask("GET", "/v1/limiters"))["limiters"]]

    def use(self, *more):
        for limiter in self.limiters():
            self.ask("POST", "/v1/hit", {"limiter": limiter, "key": "used", "cost": 4})
            self.ask("POST", "/v1/hit", {"limiter": limiter, "key": "full", "cost": 10})
            self.ask("POST", "/v1/hit", {"limiter": limiter, "key": "full"})
            self.ask("PUT", f"/v1/limiters/{limiter}/keys/blocked/block", {"for": "10h"})
        for limiter in ("buckets", *more):
            self.ask("POST", f"/v1/limiters/{limiter}/keys/counted/increment", {"count": 7})
        self.ask("POST", "/v1/limiters/off/disable")
        for event in ("taco", "pizza", "taco", "r\u00f6sti \u0000\""):
            for stream in ("orders", "once"):
                self.ask("POST", f"/v1/streams/{stream}/events", event)

    def answers(self, *more):
        """`key LIMITER KEY` and `stream NAME`, each with what is answered, at one time."""
        lines = [f"at {time.time_ns() // 1000}"]
        for limiter in self.limiters():
            for key in ("used", "full", "blocked", "new") + (("counted",) if limiter in ("buckets", *more) else ()):
                answer = json.loads(self.ask("GET", f"/v1/limiters/{limiter}/keys/{key}"))
                told = " ".join(str(answer[field]).lower() for field in ("allowed", "limit", "remaining", "reason"))
                lines.append(f"key {limiter} {key} {told}")
        for limiter in self.limiters():
            for state in ("tracked", "blocked"):
                keys = json.loads(self.ask("GET", f"/v1/limiters/{limiter}/keys?state={state}")).get("keys")
                if keys is not None:
                    lines.append(f"{state} {limiter} {' '.join(sorted(keys))}".strip())
        for stream in ("orders", "once"):
            state = json.loads(self.ask("GET", f"/v1/streams/{stream}"))
            lines.append(f"stream {stream} {json.dumps(state)}")
        return lines

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait() != 0:
            sys.exit("the server did not stop in order")


def restoring(port):
    """The commands that bring back all keys; without their expiry, so that they are there whenever it is."""
    redis = Redis(port)
    for key in sorted(redis.ask(b"KEYS", b"*")):
        yield command(b"RESTORE", key, b"0", redis.ask(b"DUMP", key))


class Redis:
    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def ask(self, *words):
        self.file.write(command(*words))
        self.file.flush()
        return self.reply()

    def reply(self):
        line = self.file.readline()[:-2]
        if line[:1] == b"*":
            return [self.reply() for _ in range(int(line[1:]))]
        return self.file.read(int(line[1:]) + 2)[:-2]


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def write(path, lines):
    open(path, "w").write("\n".join(lines) + "\n")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port):
    for _ in range(1000):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.01)
    sys.exit(f"nothing listens on port {port}")


main(*sys.argv[1:])
