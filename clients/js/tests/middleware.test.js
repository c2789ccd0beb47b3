// Express, Fastify and bare node:http, each behind its middleware, over real sockets.
// Express and Fastify are looked for where NODE_PATH says, as this package depends on neither.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { after, before, describe, it } from 'node:test';
import { limit as expressLimit } from '../express.js';
import { limit as fastifyLimit } from '../fastify.js';
import { Client } from '../tidegate.js';
import { DEADLINE_MS, LONG, Server, withinDeadline } from './server.js';

const require = createRequire(import.meta.url);
const byUser = ({ headers }) => (headers['x-user'] ? { limiter: 'api', key: headers['x-user'] } : null);

const APPLICATIONS = {
  async express(gate, options) {
    const express = require('express');
    const app = express();
    app.use(expressLimit(gate, byUser, options));
    app.get('/', (request, response) => response.send('welcome'));
    app.set('env', 'test'); // does not print the error
    const server = app.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
  },
  async fastify(gate, options) {
    const app = require('fastify')();
    app.addHook('onRequest', fastifyLimit(gate, byUser, options));
    app.get('/', async () => 'welcome');
    return { url: await app.listen({ port: 0, host: '127.0.0.1' }), close: () => app.close() };
  },
  async 'node:http'(gate, options) {
    const limited = expressLimit(gate, byUser, options);
    const server = createServer((request, response) => limited(request, response, (error) => {
      response.statusCode = error ? 500 : 200;
      response.end('welcome');
    }));
    await once(server.listen(0, '127.0.0.1'), 'listening');
    return { url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
  },
};

for (const [name, start] of Object.entries(APPLICATIONS)) {
  describe(name, () => {
    let server;
    before(async () => { server = await Server.start(); });
    after(() => server.close());

    async function get(options, user, middleware) {
      const app = await start(new Client(server.url, options), middleware);
      try {
        const headers = { connection: 'close', ...(user && { 'x-user': user }) };
        const answer = await fetch(app.url, { headers });
        return { status: answer.status, headers: answer.headers, body: await answer.text() };
      } finally {
        await app.close();
      }
    }

    it('allowed, then denied', async () => {
      for (const left of [2, 1, 0]) {
        const { status, headers, body } = await get(LONG, 'u1', { legacyHeaders: left === 0 });
        assert.deepEqual([status, body], [200, 'welcome']);
        assert.equal(headers.get('ratelimit-policy'), '"api";q=3;w=3600');
        assert.ok(headers.get('ratelimit').startsWith(`"api";r=${left};t=`));
        assert.equal(headers.get('x-ratelimit-remaining'), left === 0 ? '0' : null);
      }
      const { status, headers, body } = await get(LONG, 'u1');
      assert.equal(status, 429);
      assert.match(headers.get('content-type'), /^application\/problem\+json/);
      assert.ok(Number(headers.get('retry-after')) > 1000);
      assert.equal(JSON.parse(body).limiter, 'api');
      const passed = await get(LONG, null);
      assert.deepEqual([passed.status, passed.headers.get('ratelimit')], [200, null], 'not asked');
    });

    it('a name that is no key is not let in', async () => {
      assert.equal((await get({ ...LONG, onFailure: 'allow' }, 'u'.repeat(513))).status, 500);
    });

    it('without a server', async () => {
      await server.kill();
      assert.equal((await withinDeadline(() => get({ deadlineMs: DEADLINE_MS }, 'u1'))).status, 200);
      const { status, headers, body } = await withinDeadline(() => get({ deadlineMs: DEADLINE_MS, onFailure: 'deny' }, 'u1'));
      assert.deepEqual([status, headers.get('retry-after')], [503, '1']);
      assert.match(body, /#temporary-reduced-capacity/);
    });
  });
}
