// Costs that are known later, and middleware that counts only failures or only successes.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, request as ask } from 'node:http';
import { createRequire } from 'node:module';
import { after, before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { limit as expressLimit } from '../express.js';
import { limit as fastifyLimit } from '../fastify.js';
import { Client, Refused } from '../tidegate.js';
import { DEADLINE_MS, LONG, Server, oddServer, withinDeadline } from './server.js';

const require = createRequire(import.meta.url);

describe('reservations', () => {
  let server;
  let gate;
  before(async () => {
    server = await Server.start();
    gate = new Client(server.url, LONG);
  });
  after(() => server.close());

  it('less, more and nothing', async () => {
    const held = await gate.reserve('hundred', 'u1', 40);
    assert.deepEqual([held.allowed, held.remaining], [true, 60]);
    assert.deepEqual(await gate.commit(held.reservation, 15), { outcome: 'settled', cost: 15, givenBack: 25, excess: 0, error: null });
    assert.equal((await gate.commit(held.reservation, 15)).outcome, 'not_reserved', 'it had ended');
    assert.equal((await gate.commit((await gate.reserve('hundred', 'u1', 5, { holdMs: 60_000 })).reservation, 7)).excess, 2);
    assert.equal((await gate.cancel((await gate.reserve('hundred', 'u1', 70)).reservation)).givenBack, 70);
    assert.equal((await gate.peek('hundred', 'u1')).remaining, 78);
    const denied = await gate.reserve('hundred', 'u1', 79);
    assert.deepEqual([denied.allowed, denied.reservation], [false, null]);
    assert.equal((await gate.cancel(denied.reservation)).outcome, 'nothing');
  });

  it('what the server refuses', async () => {
    await assert.rejects(gate.reserve('unknown', 'u1'), Refused);
    await assert.rejects(gate.reserve('hundred', 'u1', 1, { holdMs: -1 }), Refused);
    await assert.rejects(gate.cancel('no/such name?'), Refused);
  });

  it('an end is never sent twice', async () => {
    await oddServer((socket) => socket.destroy(), async (url, read) => {
      const other = new Client(url, LONG);
      assert.equal((await other.cancel('R')).outcome, 'unknown');
      assert.equal((await other.commit('R', 1)).outcome, 'unknown');
      assert.deepEqual(read.map((text) => String(text).split(' HTTP')[0]), ['DELETE /v1/reservations/R', 'POST /v1/reservations/R/commit']);
    });
  });

  it('nor over a connection that was used before, and breaks', async () => {
    const ends = [];
    const broken = createServer((request, response) => {
      if (request.url === '/v1/hit') {
        response.end('{"allowed":true,"reason":"ok"}');
      } else {
        ends.push(request.method);
        request.socket.destroy();
      }
    });
    await once(broken.listen(0, '127.0.0.1'), 'listening');
    const other = new Client(`http://127.0.0.1:${broken.address().port}`, LONG);
    for (const end of [() => other.cancel('R'), () => other.commit('R', 1)]) {
      await other.hit('api', 'u1');
      assert.equal((await end()).outcome, 'unknown');
    }
    assert.deepEqual(ends, ['DELETE', 'POST']);
    broken.close();
  });

  it('without a server', async () => {
    const errors = [];
    const away = await Server.start();
    await away.kill();
    const open = new Client(away.url, { deadlineMs: DEADLINE_MS, onError: (error) => errors.push(error) });
    assert.equal((await withinDeadline(() => open.reserve('hundred', 'u1'))).allowed, true);
    assert.equal((await new Client(away.url, { deadlineMs: DEADLINE_MS, onFailure: 'deny' }).reserve('hundred', 'u1')).allowed, false);
    const { outcome, error } = await withinDeadline(() => open.cancel('R'));
    assert.deepEqual([outcome, errors.length, error], ['unknown', 2, errors[1]]);
    await away.close();
  });

  it('a callback that fails does not decide', async () => {
    const away = await Server.start();
    await away.kill();
    const { error } = console;
    const printed = [];
    console.error = (...words) => printed.push(words);
    try {
      for (const onError of [() => { throw new Error('its own fault'); }, async () => { throw new Error('its own fault'); }]) {
        assert.equal((await new Client(away.url, { deadlineMs: DEADLINE_MS, onError }).hit('api', 'u1')).allowed, true);
      }
      await sleep(10);
      assert.equal(printed.length, 2);
    } finally {
      console.error = error;
      await away.close();
    }
  });
});

describe('next', () => {
  it('is called once, though it throws', async () => {
    const calls = [];
    const pass = expressLimit(new Client(), () => null);
    await assert.rejects(pass({}, {}, (error) => { calls.push(error); throw new Error('behind'); }), /behind/);
    assert.deepEqual(calls, [undefined]);
  });
});

/** Answers with the status that `x-status` names; `throw` has it fail, and `hang` never answers. */
const APPLICATIONS = {
  async express(limited) {
    const express = require('express');
    const app = express();
    app.set('env', 'test'); // does not print the error
    app.use(limited(expressLimit));
    app.get('/', (request, response) => {
      assert.equal(request.tidegate.allowed, true);
      if (request.headers['x-status'] === 'throw') throw new Error('its own');
      if (request.headers['x-status'] !== 'hang') response.status(Number(request.headers['x-status'])).send('told');
    });
    const server = app.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return { port: server.address().port, close: () => { server.closeAllConnections(); server.close(); } };
  },
  async fastify(limited) {
    const app = require('fastify')({ forceCloseConnections: true });
    app.addHook('onRequest', limited(fastifyLimit));
    app.get('/', async (request, reply) => {
      assert.equal(request.tidegate.allowed, true);
      if (request.headers['x-status'] === 'throw') throw new Error('its own');
      if (request.headers['x-status'] === 'hang') return sleep(1e6, undefined, { ref: false });
      return reply.code(Number(request.headers['x-status'])).send('told');
    });
    return { port: Number((await app.listen({ port: 0, host: '127.0.0.1' })).split(':').at(-1)), close: () => app.close() };
  },
  async 'node:http'(limited) {
    const pass = limited(expressLimit);
    const server = createServer((request, response) => pass(request, response, (error) => {
      const wanted = request.headers['x-status'];
      if (wanted === 'hang') return;
      response.statusCode = error || wanted === 'throw' ? 500 : Number(wanted);
      response.end('told');
    }));
    await once(server.listen(0, '127.0.0.1'), 'listening');
    return { port: server.address().port, close: () => { server.closeAllConnections(); server.close(); } };
  },
};

for (const [name, start] of Object.entries(APPLICATIONS)) {
  describe(`counting behind ${name}`, () => {
    let server;
    let gate;
    before(async () => {
      server = await Server.start();
      gate = new Client(server.url, LONG);
    });
    after(() => server.close());

    /** The statuses of a visitor's requests, each when the one before is settled. The key is a promise, as of a session. */
    async function statuses(count, wanted) {
      const open = new Set();
      const settling = { ask: (asked) => gate.ask(asked), reserve: (...words) => gate.reserve(...words) };
      for (const end of ['commit', 'cancel']) {
        settling[end] = (...words) => {
          const ended = gate[end](...words);
          open.add(ended);
          return ended;
        };
      }
      const key = async () => { await sleep(1); return { limiter: 'api', key: `${name}-${count}` }; };
      const app = await start((limit) => limit(settling, key, { count }));
      const got = [];
      for (const status of wanted) {
        const before = open.size;
        const answered = await new Promise((resolve) => {
          const sent = ask({ port: app.port, agent: false, headers: { 'x-status': status } }, (answer) => { answer.resume().on('end', () => resolve(answer.statusCode)); });
          sent.on('error', () => resolve('left'));
          sent.end();
          if (status === 'hang') setTimeout(() => sent.destroy(), 100);
        });
        got.push(answered);
        if (answered !== 429) {
          for (let tries = 0; open.size === before && tries < 500; tries += 1) await sleep(10);
          assert.equal(open.size, before + 1, 'settled once');
          await Promise.all(open);
        }
      }
      await app.close();
      return got;
    }

    it('only failures', async () => {
      assert.deepEqual(await statuses('failures', [200, 302, 200, 201, 401, 200, 'throw', 'hang', 200]), [200, 302, 200, 201, 401, 200, 500, 'left', 429]);
    });

    it('only successes', async () => {
      assert.deepEqual(await statuses('successes', [500, 404, 'hang', 'throw', 200, 500, 201, 302, 500]), [500, 404, 'left', 500, 200, 500, 201, 302, 429]);
    });

    it('words that are not known', () => {
      for (const limit of [expressLimit, fastifyLimit]) assert.throws(() => limit(gate, () => null, { count: 'some' }), /use 'all', 'failures' or 'successes'/);
    });
  });
}
