// node-redis against the RESP door: RESP2 and RESP3, one by one and pipelined.
import { createRequire } from "node:module";
import assert from "node:assert/strict";

const require = createRequire(`${process.env.CLIENTS}/`);
const { createClient } = require("redis");
const [host, port, password] = process.argv.slice(2);

for (const RESP of [2, 3]) {
  const client = createClient({ socket: { host, port: Number(port) }, RESP, password });
  client.on("error", (error) => { throw error; });
  await client.connect();
  const throttle = (...parts) => client.sendCommand(["CL.THROTTLE", ...parts.map(String)]);
  const key = `node-${RESP}`;
  assert.equal(await client.ping(), "PONG");
  assert.deepEqual(await throttle(key, 15, 30, 60), [0, 16, 15, -1, 2]);
  assert.deepEqual(await throttle(key, 15, 30, 60, 15), [0, 16, 0, -1, 32]);
  const [limited, limit, left, retry] = await throttle(key, 15, 30, 60);
  assert.deepEqual([limited, limit, left], [1, 16, 0]);
  assert.ok(retry === 1 || retry === 2, String(retry));
  assert.deepEqual((await throttle(key, 15, 30, 60, 0)).slice(0, 4), [0, 16, 0, -1]);
  assert.deepEqual((await throttle(key, 15, 30, 60, -5)).slice(0, 4), [0, 16, 5, -1]);
  await assert.rejects(throttle(key, 2147483648, 1, 1099511627776), /period 1099511627776 is out of range/);
  assert.deepEqual(await throttle(`${key}-next`, 15, 30, 60), [0, 16, 15, -1, 2]);
  // What is asked in one turn of the loop goes out in one write.
  const many = await Promise.all(Array.from({ length: 1000 }, () => client.sendCommand(["TG.HIT", "many", key])));
  many.forEach((reply, place) => assert.equal(reply[2], 999_999 - place));
  assert.equal((await client.sendCommand(["TG.ATTR", "login", "1", "user", key]))[5], "login-user");
  await client.close();
}
console.log("done");
