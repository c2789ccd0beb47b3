// The client against a real server: what it answers, and what holds when there is none.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, Decision, Refused, Unreachable } from '../tidegate.js';
import { DEADLINE_MS, LONG, Server, oddServer, withinDeadline } from './server.js';

describe('answers', () => {
  let server;
  let gate;
  before(async () => {
    server = await Server.start();
    gate = new Client(server.url, LONG);
  });
  after(() => server.close());

  it('hits are charged until the limit', async () => {
    assert.equal((await gate.peek('api', 'u1')).remaining, 3);
    assert.equal((await gate.hit('api', 'u1')).remaining, 2);
    assert.equal((await gate.hit('api', 'u1', 2)).remaining, 0);
    const denied = await gate.hit('api', 'u1');
    assert.deepEqual([denied.allowed, denied.reason, denied.limiter, denied.status], [false, 'limited', 'api', 429]);
    assert.ok(denied.retryAfterMs > 1_000_000 && denied.retryAfterMs <= 1_200_000);
    assert.match(denied.body(), /"violated-policies":\["api"\]/);
  });

  it('attributes are charged together', async () => {
    const ask = (user) => gate.ask({ domain: 'login', attributes: { user, ip: '192.0.2.1' } });
    const told = [];
    for (const user of ['a', 'a', 'a', 'b', 'c']) told.push(await ask(user));
    assert.deepEqual(told.map(({ allowed }) => allowed), [true, true, false, true, false]);
    assert.deepEqual([told[2].limiter, told[4].limiter], ['login-user', 'login-ip']);
  });

  it('batches', async () => {
    const told = await gate.hits([{ limiter: 'api', key: 'b' }, { limiter: 'unknown', key: 'b' }, { limiter: 'api', key: 'b', cost: 9 }]);
    assert.deepEqual([told[0].remaining, told[2].allowed], [2, false]);
    assert.ok(told[1] instanceof Refused && told[1].problem.code === 'unknown_limiter');
    const both = [{ limiter: 'api', key: 't', cost: 2 }, { limiter: 'hundred', key: 't' }];
    assert.equal((await gate.hitsTogether(both)).allowed, true);
    const denied = await gate.hitsTogether(both);
    assert.deepEqual([denied.allowed, denied.answers.length], [false, 2]);
    assert.equal((await gate.peek('hundred', 't')).remaining, 99, 'nothing was charged by the second');
  });

  it('header fields are those of the server', async () => {
    const fields = (await gate.hit('api', 'h', 3)).headers({ legacy: true });
    assert.equal(fields['RateLimit-Policy'], '"api";q=3;w=3600');
    assert.equal(fields.RateLimit, '"api";r=0;t=3600');
    assert.deepEqual([fields['X-RateLimit-Limit'], fields['X-RateLimit-Reset']], ['3', '3600']);
    const denied = await gate.hit('api', 'h');
    assert.equal(denied.headers()['X-RateLimit-Limit'], undefined);
    const legacy = denied.headers({ legacy: true });
    assert.equal(legacy['Retry-After'], legacy['X-RateLimit-Reset']);
  });

  it('what the server refuses is never allowed', async () => {
    for (const [limiter, key] of [['unknown', 'u1'], ['api', 'k'.repeat(513)], ['api', '']]) {
      await assert.rejects(gate.hit(limiter, key), Refused);
    }
  });

  it('many at once, over connections that are used again', async () => {
    const told = await Promise.all(Array.from({ length: 160 }, () => gate.hit('hundred', 'many')));
    assert.equal(told.filter(({ allowed }) => allowed).length, 100);
    const opened = async () => Number((await (await fetch(`${server.url}/metrics`)).text()).match(/^tidegate_http_connections_total (\d+)/m)[1]);
    const begun = await opened();
    for (let number = 0; number < 20; number += 1) await gate.hit('hundred', 'again');
    assert.ok(await opened() - begun <= 1);
  });

  it('settings that make no sense', () => {
    assert.throws(() => new Client('gate.example'), TypeError);
    assert.throws(() => new Client(server.url, { onFailure: 'maybe' }), /use 'allow' or 'deny'/);
    assert.throws(() => new Client(server.url, { deadlineMs: 0 }), /must be above 0/);
  });
});

describe('access', () => {
  it('a token is shown', async () => {
    const server = await Server.start({ tokens: true });
    try {
      // As it is in its file, with the line's end.
      assert.equal((await new Client(server.url, { ...LONG, token: server.token }).hit('hundred', 'u1')).allowed, true);
      process.env.TIDEGATE_TOKEN = server.token;
      assert.equal((await new Client(server.url, LONG).hit('hundred', 'u1')).allowed, true);
      delete process.env.TIDEGATE_TOKEN;
      for (const token of [undefined, 'tg_wrong']) {
        await assert.rejects(new Client(server.url, { ...LONG, token }).hit('hundred', 'u1'), ({ problem }) => problem.status === 401);
      }
    } finally {
      await server.close();
    }
  });

  it('https', async () => {
    const server = await Server.start({ tls: true });
    try {
      assert.equal((await new Client(server.url, { ...LONG, onFailure: 'deny' }).hit('hundred', 'u1')).reason, 'unreachable', 'nobody vouches for it');
      // Node reads certificates of one's own when it starts.
      const script = `import { Client } from '${new URL('../tidegate.js', import.meta.url)}';
        console.log((await new Client('${server.url}', ${JSON.stringify(LONG)}).hit('hundred', 'u1')).remaining);`;
      const env = { ...process.env, NODE_EXTRA_CA_CERTS: server.path('cert.pem') };
      const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], { env });
      assert.equal(stdout, '99\n');
    } finally {
      await server.close();
    }
  });
});

describe('failures', () => {
  let server;
  before(async () => { server = await Server.start(); });
  after(() => server.close());
  const deadlineMs = DEADLINE_MS;

  it('killed and restarted', async () => {
    const errors = [];
    const open = new Client(server.url, { deadlineMs, onError: (error) => errors.push(error) });
    const closed = new Client(server.url, { deadlineMs, onFailure: 'deny' });
    // What the machine needs to begin with is not the server's time to answer.
    await Promise.all([open, closed].map((gate) => gate.hit('hundred', 'k')));
    errors.length = 0;
    await server.kill();
    for (let number = 0; number < 3; number += 1) {
      const allowed = await withinDeadline(() => open.hit('hundred', 'k'));
      assert.deepEqual([allowed.allowed, allowed.reason, allowed.limit], [true, 'unreachable', null]);
      const denied = await withinDeadline(() => closed.hit('hundred', 'k'));
      assert.deepEqual([denied.allowed, denied.status, denied.headers()['Retry-After']], [false, 503, '1']);
      assert.match(denied.body(), /temporary-reduced-capacity/);
    }
    assert.equal(errors.length, 3);
    assert.ok(errors.every((error) => error instanceof Unreachable));
    const batch = await closed.hits([{ limiter: 'api', key: 'k' }, { limiter: 'api', key: 'k' }]);
    assert.ok(batch.length === 2 && batch.every((each) => each instanceof Decision && !each.allowed));
    assert.equal((await open.hitsTogether([{ limiter: 'api', key: 'k' }])).allowed, true);
    await server.start();
    for (const gate of [open, closed]) {
      let told;
      for (let number = 0; number < 20 && told?.limit !== 100; number += 1) told = await gate.hit('hundred', 'again');
      assert.equal(told.limit, 100);
    }
  });

  it('a refused connection is tried again', async () => {
    const gate = new Client(server.url, { ...LONG, onFailure: 'deny' });
    await server.kill();
    const restarted = sleep(200).then(() => server.start());
    assert.equal((await gate.hit('hundred', 'r')).allowed, true);
    await restarted;
  });

  it('stopped it is no hang, and nothing is charged twice', async () => {
    const gate = new Client(server.url, { deadlineMs, onFailure: 'deny' });
    const calm = new Client(server.url, LONG);
    const left = async () => (await calm.peek('hundred', 's')).remaining;
    await gate.hit('hundred', 's');
    const begun = await left();
    await server.stopped(async () => {
      for (let number = 0; number < 3; number += 1) {
        assert.equal((await withinDeadline(() => gate.hit('hundred', 's'))).reason, 'unreachable');
      }
    });
    await sleep(200); // for what lies in sockets to be read, if it is
    assert.ok(await left() >= begun - 3);
  });

  it('an answer that never ends is no hang', async () => {
    const drip = (socket) => {
      socket.write('HTTP/1.1 200 OK\r\nX-Slow: ');
      const timer = setInterval(() => (socket.destroyed ? clearInterval(timer) : socket.write('x')), 20);
    };
    await oddServer(drip, async (url) => {
      const gate = new Client(url, { deadlineMs, onFailure: 'deny' });
      assert.equal((await withinDeadline(() => gate.hit('api', 'u1'))).reason, 'unreachable');
    });
  });

  it('what was sent is never sent again', async () => {
    await oddServer((socket) => socket.destroy(), async (url, read) => {
      assert.equal((await new Client(url, LONG).hit('api', 'u1')).reason, 'unreachable');
      assert.equal(read.length, 1);
    });
  });

  it('answers that are no decision', async () => {
    const answers = ['502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno!', '200 OK\r\nContent-Length: 2\r\n\r\n[]', '302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n'];
    for (const answer of answers) {
      await oddServer((socket) => socket.write(`HTTP/1.1 ${answer}`), async (url, read) => {
        assert.equal((await new Client(url, { ...LONG }).hit('api', 'u1')).reason, 'unreachable');
        assert.equal(read.length, 1);
      });
    }
  });
});
