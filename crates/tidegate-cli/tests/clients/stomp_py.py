"""stomp.py against a real server: python3 stomp_py.py HOST PORT
Speaks to its test on stdout, one word a line, and waits for a line on stdin where the test has to act."""
import json
import sys
import time
import stomp

HOST, PORT = sys.argv[1], int(sys.argv[2])


def must(is_so, what):
    if not is_so:
        print("FAILED:", what, flush=True)
        sys.exit(1)


def until(is_so, what):
    end = time.monotonic() + 20
    while not is_so():
        must(time.monotonic() < end, "not in time: " + what)
        time.sleep(0.02)


class Listener(stomp.ConnectionListener):
    def __init__(self):
        self.messages, self.receipts, self.errors, self.beats, self.version = [], {}, [], 0, None

    def on_connected(self, frame):
        self.version = frame.headers["version"]

    def on_message(self, frame):
        self.messages.append(json.loads(frame.body))

    def on_receipt(self, frame):
        self.receipts[frame.headers["receipt-id"]] = frame.headers.get("status")

    def on_error(self, frame):
        self.errors.append((frame.headers.get("message"), frame.body))

    def on_heartbeat(self):
        self.beats += 1


def connect():
    listener = Listener()
    connection = stomp.WSStompConnection([(HOST, PORT)], ws_path="/ws", heartbeats=(1000, 1000))
    connection.set_listener("", listener)
    connection.connect(wait=True)
    return connection, listener


connection, listener = connect()
must(listener.version == "1.2", "version")
connection.subscribe("/topic/orders", id="a b:c", ack="client-individual")
until(lambda: listener.messages, "the snapshot")
must(listener.messages[0]["messageType"] == "KEY_FRAME", "a snapshot first")
connection.send("/app/orders", "nacho", receipt="r1")
connection.send("/app/orders", "nacho", receipt="r2")
connection.send("/app/orders", "salsa", receipt="r3")
until(lambda: len(listener.receipts) == 3, "receipts")
must(listener.receipts == {"r1": "submitted", "r2": "conflict", "r3": "submitted"}, str(listener.receipts))
published = lambda l, e: any(m["messageType"] == "PUBLISHED_EVENT" and m["eventTime"]["event"] == e for m in l.messages)
until(lambda: published(listener, "salsa"), "published")
until(lambda: listener.beats >= 2, "heart-beats")
connection.send("/app/orders", "over the restart", receipt="r4")
until(lambda: "r4" in listener.receipts, "a receipt before the restart")
seen = listener.messages
print("restart", flush=True)
sys.stdin.readline()
connection, listener = connect()
connection.subscribe("/topic/orders", id="again", headers={"from-clock": seen[-1]["clock"]})
until(lambda: published(listener, "over the restart"), "resumed")
seen = [m["clock"] for m in seen + listener.messages]
must(seen == list(range(seen[0], seen[0] + len(seen))), "C1, C2: clocks %s" % seen)
must(not listener.errors, str(listener.errors))
connection.disconnect(receipt="bye")
until(lambda: "bye" in listener.receipts, "the receipt of DISCONNECT")

connection, listener = connect()
connection.subscribe("/topic/nothing", id="x")
until(lambda: listener.errors, "an ERROR")
must("no stream is named" in listener.errors[0][1], str(listener.errors))
print("done", flush=True)
