// Tidegate's event streams in JavaScript: the modelled state, kept from snapshots and deltas.
//
// An ES module without dependencies and without a build step; for browsers and Node.
// EventModel knows messages only. followStomp keeps one on a client of @stomp/stompjs, followFeed on
// server-sent events: both notice a gap in the clock, resume after a lost connection, and go on. They say which
// history they know (its epoch), so that two of them are never joined.

/** What incubates on a stream, by its messages. */
export class EventModel {
  /** @param {number} durationMs the stream's duration, for invalid events, which leave without a message */
  constructor(durationMs) {
    this.durationMs = durationMs;
    this.clock = null; // of the last message; null: no snapshot yet
    this.epoch = null; // of the stream's history; key frames name it
    this.events = new Map(); // text -> { time, status: 'Valid' | 'Invalid' }
  }

  /**
   * Takes a message: 'applied'; 'old' when it was seen before; 'gap' when one before it is missing.
   * After a gap nothing was changed: subscribe again from `clock`.
   * @param {boolean} begins the message is the first of a subscription
   */
  apply(message, begins = false) {
    const { clock, epoch = null, messageType } = message;
    if (messageType === 'KEY_FRAME') {
      // A snapshot heals any gap. One from the past says nothing new, unless it is of another history, as of a stream
      // that is kept in memory only when its server has started again; or, from a server that names none, unless a
      // subscription begins with it.
      if (!begins && epoch === this.epoch && this.clock !== null && clock < this.clock) return 'old';
      this.clock = clock;
      this.epoch = epoch;
      this.events = new Map(message.snapshot.map(({ event, time, status }) => [event, { time, status }]));
      return 'applied';
    }
    if (this.clock === null || clock > this.clock + 1) return 'gap';
    if (clock <= this.clock) return 'old';
    this.clock = clock;
    const { event, time } = message.eventTime;
    if (messageType === 'SUBMITTED_EVENT') {
      this.events.delete(event); // An invalid one of this text may be there: the new one comes last.
      this.events.set(event, { time, status: 'Valid' });
    } else if (messageType === 'INVALIDATED_EVENT') {
      this.events.set(event, { time, status: 'Invalid' });
    } else {
      this.events.delete(event);
    }
    return 'applied';
  }

  /** The state as a snapshot has it, without invalid events whose time is up. */
  snapshot(nowMs = Date.now()) {
    const all = [...this.events].map(([event, { time, status }]) => ({ event, time, status }));
    return all.filter(({ time, status }) => status === 'Valid' || time + this.durationMs > nowMs);
  }
}

/**
 * Keeps a model on a client of @stomp/stompjs, over reconnects.
 * @param client a Client that is activated by the caller; its onConnect is taken over and called
 * @param stream the stream's name
 * @param options durationMs, onMessage(message, model), onGap(model), token: for a server that asks for one
 */
export function followStomp(client, stream, { durationMs, onMessage = () => {}, onGap = () => {}, token = null }) {
  const model = new EventModel(durationMs);
  if (token !== null) client.connectHeaders = { ...client.connectHeaders, login: 'tidegate', passcode: token };
  let subscription = null;
  let generation = 0;
  const subscribe = () => {
    const mine = ++generation;
    const headers = { id: `tidegate-${stream}-${mine}` };
    let begins = true;
    if (model.clock !== null) headers['from-clock'] = String(model.clock);
    if (model.epoch !== null) headers.epoch = model.epoch;
    subscription = client.subscribe(`/topic/${stream}`, (frame) => {
      if (mine !== generation) return;
      const message = JSON.parse(frame.body);
      const outcome = model.apply(message, begins);
      begins = false;
      if (outcome === 'applied') onMessage(message, model);
      if (outcome === 'gap') {
        onGap(model);
        subscription.unsubscribe();
        subscribe();
      }
    }, headers);
  };
  const before = client.onConnect;
  client.onConnect = (frame) => {
    before(frame);
    subscribe();
  };
  if (client.connected) subscribe();
  return model;
}

const RETRY_MS = 1000;
const RETRY_MS_MAX = 30000;
const CLOSED = 2; // EventSource.CLOSED, which is not there where Source is passed in

/**
 * Keeps a model on the server-sent events of a stream. An EventSource resumes by itself after a lost connection, but gives
 * up for good on an answer that is no feed, such as the 502 of a proxy whose server starts again: then this opens
 * another, after 1 s, 2 s and so on up to 30 s, each with a part by chance, so that many do not come together.
 * @param server the server's address, such as http://127.0.0.1:7400
 * @param options durationMs, onMessage(message, model), onGap(model), Source: an EventSource where there is none; token: for a
 * server that asks for one, with which fetch is used, as an EventSource cannot show it
 * @returns the model, and close()
 */
export function followFeed(server, stream, { durationMs, onMessage = () => {}, onGap = () => {}, Source = globalThis.EventSource, token = null }) {
  if (!Source && token === null) throw new Error('there is no EventSource here; run node with --experimental-eventsource, or pass one as Source');
  const model = new EventModel(durationMs);
  const address = `${server}/v1/streams/${encodeURIComponent(stream)}/feed`;
  let source = null;
  let timer = null;
  let retryMs = RETRY_MS;
  const open = () => {
    let begins = true;
    source = token === null ? new Source(address + place(model)) : new FetchSource(address + place(model), token);
    source.onopen = () => { begins = true; };
    source.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      const outcome = model.apply(message, begins);
      begins = false;
      retryMs = RETRY_MS;
      if (outcome === 'applied') onMessage(message, model);
      if (outcome === 'gap') {
        onGap(model);
        source.close();
        open();
      }
    };
    source.onerror = () => {
      if (source.readyState !== CLOSED || timer !== null) return;
      timer = setTimeout(() => { timer = null; open(); }, retryMs * (0.5 + Math.random() / 2));
      retryMs = Math.min(retryMs * 2, RETRY_MS_MAX);
    };
  };
  open();
  return { model, close: () => { clearTimeout(timer); source.onerror = null; source.close(); } };
}

/** As much of an EventSource as a feed needs, over fetch, with a token. It does not come back by itself: followFeed opens another. */
class FetchSource {
  constructor(address, token) {
    this.readyState = 0;
    this.onopen = this.onmessage = this.onerror = () => {};
    this.aborter = new AbortController();
    this.read(address, token).catch(() => {}).then(() => {
      if (this.readyState === CLOSED) return;
      this.readyState = CLOSED;
      this.onerror?.();
    });
  }

  async read(address, token) {
    const headers = { authorization: `Bearer ${token}`, accept: 'text/event-stream' };
    const answer = await fetch(address, { headers, cache: 'no-store', signal: this.aborter.signal });
    if (!answer.ok || this.readyState === CLOSED) return;
    this.readyState = 1;
    this.onopen();
    const decoder = new TextDecoder();
    let text = '';
    for (const reader = answer.body.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (text + decoder.decode(value, { stream: true })).split('\n\n');
      text = events.pop();
      for (const event of events) {
        const lines = event.split('\n');
        const data = lines.filter((line) => line.startsWith('data: ')).map((line) => line.slice(6));
        const isMessage = data.length > 0 && !lines.some((line) => line.startsWith('event: '));
        if (isMessage && this.readyState !== CLOSED) this.onmessage({ data: data.join('\n') });
      }
    }
  }

  close() {
    this.readyState = CLOSED;
    this.aborter.abort();
  }
}

/** Where a feed goes on, as the query of its address. */
function place({ clock, epoch }) {
  if (clock === null) return '';
  return epoch === null ? `?from_clock=${clock}` : `?from_clock=${clock}&epoch=${epoch}`;
}
