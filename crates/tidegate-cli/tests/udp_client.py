"""A client of the UDP protocol, written from its text alone. Usage: udp_client.py HOST PORT"""
import random
import socket
import sys

server = (sys.argv[1], int(sys.argv[2]))
sock = socket.socket(socket.AF_INET6 if ":" in server[0] else socket.AF_INET, socket.SOCK_DGRAM)
sock.connect(server)
sock.settimeout(0.5)


def ask(command):
    """The reply, or None for silence."""
    request_id = random.randrange(1 << 16)
    sock.send(b"%d %s" % (request_id, command))
    try:
        while True:
            reply_id, _, reply = sock.recv(4096).partition(b" ")
            if reply_id == b"%d" % request_id:
                return reply.decode()
    except socket.timeout:
        return None


def over_limit(key):
    """True only for an explicit Y; silence is not over."""
    reply = ask(b"over_limit " + key)
    if reply is None:
        return False
    ok, over, rate, limit, period = reply.split(" ")
    assert ok == "ok" and over in "YN" and float(rate) >= 0 and float(limit) >= 0 and int(period) >= 0, reply
    return over == "Y"


assert ask(b"ping") == "pong"
assert ask(b"PING") is None
verdicts = [over_limit(b"ws ip=192.0.2.1") for _ in range(40)]
assert verdicts.index(True) in (22, 23), verdicts  # a burst; the average fades a little meanwhile
assert not over_limit(b"ws ip=192.0.2.2")
assert ask(b"over_limit nobody") == "ok N 0.0 1.0 1"
for _ in range(3):
    over_limit(b"ws ip=132.185.1.2")
assert ask(b"get_stats ws cust=bbc") == "n_req=3 n_over=0 last_max_rate=0 key=ws cust=bbc"
assert ask(b"get_size").startswith("size=")
print("all well")
