"""redis-py against the RESP door: RESP2 and RESP3, one by one and pipelined."""
import sys

import redis

host, port, token = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None


def throttle(client, *arguments):
    return client.execute_command("CL.THROTTLE", *arguments)


for protocol in (2, 3):
    client = redis.Redis(host=host, port=port, protocol=protocol, password=token)
    assert client.ping() and client.echo("x") == b"x"
    assert "redis_version" in client.info()
    key = f"py-{protocol}"
    assert throttle(client, key, 15, 30, 60) == [0, 16, 15, -1, 2]
    assert throttle(client, key, 15, 30, 60, 15) == [0, 16, 0, -1, 32]
    limited, limit, left, retry, reset = throttle(client, key, 15, 30, 60)
    assert (limited, limit, left) == (1, 16, 0) and retry in (1, 2) and reset in (31, 32), (retry, reset)
    assert throttle(client, key, 15, 30, 60, 0)[:4] == [0, 16, 0, -1]
    assert throttle(client, key, 15, 30, 60, -5)[:4] == [0, 16, 5, -1]
    try:
        throttle(client, key, 2147483648, 1, 1099511627776)
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert "period 1099511627776 is out of range" in str(error), error
    assert throttle(client, f"{key}-next", 15, 30, 60) == [0, 16, 15, -1, 2]

    pipeline = client.pipeline(transaction=False)
    for number in range(1000):
        pipeline.execute_command("TG.HIT", "many", key)
        pipeline.execute_command("CL.THROTTLE", f"{key}-{number}", 15, 30, 60)
    replies = pipeline.execute()
    assert [reply[2] for reply in replies[0::2]] == list(range(999_999, 998_999, -1))
    assert all(reply == [0, 16, 15, -1, 2] for reply in replies[1::2])
    assert client.execute_command("TG.ATTR", "login", 1, "user", key)[5] == b"login-user"
    assert client.execute_command("TG.ATTR", "none", 1, "user", key)[5] is None
    stats = client.execute_command("TG.STATS", "many")
    if protocol == 2:
        stats = dict(zip(stats[::2], stats[1::2]))
    assert stats[b"allowed"] >= 1000, stats
print("done")
