// What the types say, for tsc --noEmit: a line that should not compile says so.
import express from 'express';
import fastify from 'fastify';
import { Client, Decision, Refused } from 'tidegate';
import { limit as expressLimit } from 'tidegate/express';
import { limit as fastifyLimit } from 'tidegate/fastify';
import { EventModel, followFeed } from 'tidegate/events';

const gate = new Client('http://127.0.0.1:7400', { deadlineMs: 100, onFailure: 'deny', onError: (error) => console.log(error.message) });
const decision: Decision = await gate.hit('api', 'u1');
const wait: number | null = decision.retryAfterMs;
await gate.ask({ domain: 'login', attributes: { user: 'u1' }, cost: 2 });
// @ts-expect-error a limiter without a key
await gate.ask({ limiter: 'api' });
// @ts-expect-error no such word
new Client('http://127.0.0.1:7400', { onFailure: 'maybe' });
const answers: Array<Decision | Refused> = await gate.hits([{ limiter: 'api', key: 'u1' }]);

const held = await gate.reserve('api', 'u1', 4, { holdMs: 60_000 });
const settled = await gate.commit(held.reservation, 1);
const back: number | null = settled.givenBack;
// @ts-expect-error no such outcome
if (settled.outcome === 'done') console.log(back);
express().use(expressLimit(gate, async () => null, { count: 'failures', holdMs: 5000 }), (request, response) => { response.json(request.tidegate?.remaining); });
// @ts-expect-error no such word
fastifyLimit(gate, () => null, { count: 'some' });
express().use(expressLimit(gate, (request: express.Request) => ({ limiter: 'api', key: request.ip ?? '' })));
fastify().addHook('onRequest', fastifyLimit(gate, (request) => ({ limiter: 'api', key: request.ip })));
const model: EventModel = followFeed('http://127.0.0.1:7400', 'orders', { durationMs: 3000 }).model;
console.log(wait, answers, model);
