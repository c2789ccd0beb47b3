// @stomp/stompjs against a real server: node stompjs.mjs ADDRESS
// Speaks to its test on stdout, one word a line, and waits for "go" on stdin where the test has to act.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { EventModel, followFeed, followStomp } from '../../../../clients/js/tidegate-events.js';

const require = createRequire(`${process.env.CLIENTS}/`);
const { Client } = require('@stomp/stompjs');
const { WebSocket } = require('ws');
const address = process.argv[2];
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const tell = async (word) => {
  console.log(word);
  await lines.next();
};
const must = (is, what) => {
  if (is) return;
  console.log(`FAILED: ${what}`);
  process.exit(1);
};
const until = async (is, what) => {
  for (let i = 0; i < 400; i += 1) {
    if (is()) return;
    await sleep(50);
  }
  must(false, `not in time: ${what}`);
};

const beats = { received: 0, sent: 0 };
const client = new Client({
  webSocketFactory: () => new WebSocket(`ws://${address}/ws`, ['v12.stomp', 'v11.stomp', 'v10.stomp']),
  reconnectDelay: 100,
  heartbeatIncoming: 1000,
  heartbeatOutgoing: 1000,
  debug: (text) => {
    if (text.includes('Received PONG') || text === '<<< PONG') beats.received += 1;
    if (text.includes('>>> PING')) beats.sent += 1;
  },
});
const seen = [];
let gaps = 0;
const model = followStomp(client, 'orders', {
  durationMs: 2000,
  onMessage: (message) => seen.push(message),
  onGap: () => { gaps += 1; },
});
client.onStompError = (frame) => must(false, `ERROR ${frame.headers.message}: ${frame.body}`);
const receipts = new Map();
client.onUnhandledReceipt = (frame) => receipts.set(frame.headers['receipt-id'], frame.headers.status);
client.activate();
await until(() => seen.length > 0, 'the snapshot');
must(client.connectedVersion === '1.2', `version ${client.connectedVersion}`);
must(seen[0].messageType === 'KEY_FRAME', 'a snapshot first');

const send = (event, receipt) => client.publish({ destination: '/app/orders', body: event, headers: { receipt } });
send('taco', 'r1');
send('taco', 'r2');
send('burrito 🌯', 'r3');
await until(() => receipts.size === 3, 'three receipts');
must([...receipts].join(' ') === 'r1,submitted r2,conflict r3,submitted', `receipts ${[...receipts]}`);
await until(() => model.events.get('burrito 🌯')?.status === 'Valid', 'a submitted event in the model');
must(model.events.get('taco').status === 'Invalid', 'taco is invalid');
await until(() => seen.some((m) => m.messageType === 'PUBLISHED_EVENT' && m.eventTime.event === 'burrito 🌯'), 'published');
await until(() => beats.received >= 2 && beats.sent >= 2, `heart-beats ${JSON.stringify(beats)}`);

const times = [];
client.subscribe('/topic/time', (frame) => times.push(Number(frame.body)));
client.publish({ destination: '/app/time' });
await until(() => times.length === 20, 'twenty times');
must(times.every((time, i) => Math.abs(time - Date.now()) < 60000 && (i === 0 || time >= times[i - 1])), 'times');

send('over the restart', 'r4');
await until(() => receipts.has('r4'), 'a receipt before the restart');
const clock = model.clock;
await tell('restart');
await until(() => seen.some((m) => m.messageType === 'PUBLISHED_EVENT' && m.eventTime.event === 'over the restart'), 'resumed');
must(gaps === 0, `${gaps} gaps`);
const clocks = seen.map((m) => m.clock);
must(clocks.every((c, i) => i === 0 || c === clocks[i - 1] + 1), `C1, C2: clocks ${clocks}`);
must(model.clock > clock, 'the clock went on');
must(/^[0-9a-f]{13}$/.test(model.epoch) && seen.every((m) => (m.epoch ?? model.epoch) === model.epoch), 'C5: one history');

// The model alone: a missing clock value is a gap, and nothing is changed by what comes after it.
const alone = new EventModel(2000);
const delta = (clock, event, messageType) => ({ clock, eventTime: { event, time: 1 }, messageType });
must(alone.apply(delta(1, 'a', 'SUBMITTED_EVENT')) === 'gap', 'no snapshot yet');
must(alone.apply({ clock: 5, snapshot: [], messageType: 'KEY_FRAME' }) === 'applied', 'a snapshot');
must(alone.apply(delta(6, 'a', 'SUBMITTED_EVENT')) === 'applied', 'the next');
must(alone.apply(delta(8, 'b', 'SUBMITTED_EVENT')) === 'gap' && alone.clock === 6, 'a gap');
must(alone.apply(delta(6, 'a', 'SUBMITTED_EVENT')) === 'old', 'seen before');
const frame = (clock) => ({ clock, snapshot: [], messageType: 'KEY_FRAME' });
must(alone.apply(frame(1_000_006)) === 'applied' && alone.events.size === 0, 'the stream began anew, far above');
must(alone.apply(frame(1)) === 'old' && alone.clock === 1_000_006, 'a snapshot from the past');
must(alone.apply(frame(1), true) === 'applied' && alone.clock === 1, 'but not when a subscription begins with it');
must(alone.apply({ ...frame(9), epoch: 'a' }) === 'applied' && alone.apply({ ...frame(2), epoch: 'a' }) === 'old', 'an epoch');
must(alone.apply({ ...frame(2), epoch: 'b' }) === 'applied' && alone.epoch === 'b', 'C5: another history, however short');

// The same stream as server-sent events, through a small EventSource.
class Source {
  constructor(address) {
    this.stop = new AbortController();
    this.read(address).catch(() => {});
  }

  async read(address) {
    const reader = (await fetch(address, { signal: this.stop.signal })).body.getReader();
    const decoder = new TextDecoder();
    for (let text = ''; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (text + decoder.decode(value, { stream: true })).split('\n\n');
      text = events.pop();
      for (const event of events) {
        const data = event.split('\n').find((line) => line.startsWith('data: '));
        if (data) this.onmessage({ data: data.slice(6) });
      }
    }
  }

  close() {
    this.stop.abort();
  }
}
const feed = followFeed(`http://${address}`, 'orders', { durationMs: 2000, Source });
await until(() => feed.model.clock !== null, 'the snapshot of the feed');
send('by feed', 'r5');
await until(() => feed.model.events.has('by feed') && model.events.has('by feed'), 'an event in both models');
await until(() => feed.model.clock === model.clock, 'the same clock');
const theirs = await (await fetch(`http://${address}/v1/streams/orders`)).json();
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
must(theirs.clock !== model.clock || same(model.snapshot(), theirs.snapshot), `C3: ${JSON.stringify(theirs)}`);
must(same(model.snapshot(), feed.model.snapshot()), 'C3: both models are the same');
feed.close();
await client.deactivate();
console.log('done');
process.exit(0);
