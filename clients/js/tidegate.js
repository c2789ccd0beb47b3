// May this happen now? A client of Tidegate over HTTP, with fetch.
//
// An ES module without dependencies and without a build step; for Node, other runtimes with fetch, and browsers. It asks
// the server and counts nothing itself. fetch keeps connections. A hit must not be charged twice: only a connection that
// was refused is tried again, as nothing was sent then, and no call takes longer than the deadline.

const DEADLINE_MS = 250;
const RETRY_PAUSE_MS = 10;
const RETRY_AFTER_FAILURE_MS = 1000;
const HOLD_MS = 30_000;

/** The server gave no decision within the deadline. Hits turn it into a decision by `onFailure`. */
export class Unreachable extends Error {
  name = 'Unreachable';
}

/**
 * The server refuses the request itself: an unknown limiter, a key that is too long, a token that may not. It is never
 * taken for a failure of the server: otherwise a visitor with too long a name would never be limited.
 */
export class Refused extends Error {
  name = 'Refused';
  // The status is inside the problem: frameworks take an error's own for that of their answer to the visitor.
  constructor(problem) {
    super(`${problem.status} ${problem.code}: ${problem.detail}`);
    this.problem = problem;
  }
}

/** An answer of the server, or one made by `onFailure` when there was none (then `error` says why). */
export class Decision {
  /** @param {object} told the members of the answer; `fields`: its header fields; `problem`: the body of a denial */
  constructor({ allowed, reason, limiter = null, limit = null, remaining = null, retry_after_ms = null, reset_after_ms = null, degraded = null, reservation = null }, fields = {}, problem = '', error = null) {
    Object.assign(this, { allowed, reason, limiter, limit, remaining, degraded, fields, problem, error, reservation });
    this.retryAfterMs = retry_after_ms;
    this.resetAfterMs = reset_after_ms;
  }

  /** The HTTP status of a denial: 429, or 503 when it was made without the server. */
  get status() {
    return this.error ? 503 : 429;
  }

  /** The header fields for the application's own answer; `legacy` adds `X-RateLimit-*`. */
  headers({ legacy = false } = {}) {
    const told = { ...this.fields };
    if (!this.allowed && this.retryAfterMs !== null) told['Retry-After'] ??= seconds(this.retryAfterMs);
    const waitMs = this.allowed ? this.resetAfterMs : this.retryAfterMs;
    if (legacy && this.limit !== null && this.remaining !== null) {
      told['X-RateLimit-Limit'] = String(this.limit);
      told['X-RateLimit-Remaining'] = String(this.remaining);
      if (waitMs !== null) told['X-RateLimit-Reset'] = seconds(waitMs);
    }
    return told;
  }

  /** The body of a denial, as application/problem+json. */
  body() {
    if (this.problem) return this.problem;
    const [kind, title] = this.error
      ? ['temporary-reduced-capacity', 'Request cannot be satisfied due to temporary server capacity constraints']
      : ['quota-exceeded', 'Request cannot be satisfied as assigned quota has been exceeded'];
    return JSON.stringify({ type: `https://iana.org/assignments/http-problem-types#${kind}`, title, status: this.status });
  }
}

/** Asks a server. One is enough for a process. */
export class Client {
  #server;
  #headers;
  #deadlineMs;
  #onFailure;
  #onError;
  #fetch;

  constructor(server = environment('TIDEGATE_SERVER') ?? 'http://127.0.0.1:7400', options = {}) {
    const { token = environment('TIDEGATE_TOKEN'), deadlineMs = DEADLINE_MS, onFailure = 'allow', onError = () => {}, fetch = globalThis.fetch } = options;
    if (!['http:', 'https:'].includes(new URL(server).protocol)) throw new TypeError(`server ${server} is no address such as http://127.0.0.1:7400`);
    if (!['allow', 'deny'].includes(onFailure)) throw new TypeError(`onFailure ${onFailure} is not known; use 'allow' or 'deny'`);
    if (!(deadlineMs > 0)) throw new TypeError(`deadlineMs ${deadlineMs} must be above 0`);
    this.#server = String(server).replace(/\/$/, '');
    this.#headers = { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token.trim()}` }) };
    this.#deadlineMs = deadlineMs;
    this.#onFailure = onFailure;
    this.#onError = onError;
    this.#fetch = fetch;
  }

  /** May this happen now? It is charged if so. */
  hit(limiter, key, cost = 1) {
    return this.ask({ limiter, key, cost });
  }

  /** Would a hit be allowed? Nothing is charged. */
  peek(limiter, key, cost = 1) {
    return this.ask({ limiter, key, cost, peek: true });
  }

  /** Any request: `{ limiter, key }`, or `{ attributes, domain }`; with `cost` and `peek`. */
  async ask(request) {
    try {
      return await this.#decide('/v1/hit', request);
    } catch (error) {
      return this.#withoutServer(error);
    }
  }

  /** Up to 1,000 requests in one round trip, each decided by itself: a Decision, or Refused, in its place. */
  async hits(requests) {
    try {
      const { told } = await this.#exchange('POST', '/v1/hits', { requests }, 'answers');
      return told.answers.map((answer) => ('allowed' in answer ? new Decision(answer) : new Refused(answer)));
    } catch (error) {
      const decision = this.#withoutServer(error);
      return requests.map(() => decision);
    }
  }

  /** Up to 32 requests that are charged together, if `allowed`, or not at all. */
  async hitsTogether(requests) {
    try {
      const { told } = await this.#exchange('POST', '/v1/hits', { requests, together: true }, 'allowed');
      return { allowed: told.allowed, answers: told.answers.map((answer) => new Decision(answer)) };
    } catch (error) {
      const decision = this.#withoutServer(error);
      return { allowed: decision.allowed, answers: requests.map(() => decision) };
    }
  }

  /** A hit whose cost can be corrected, by the decision's `reservation`, for `holdMs`. */
  async reserve(limiter, key, cost = 1, { holdMs = HOLD_MS } = {}) {
    try {
      return await this.#decide('/v1/reserve', { limiter, key, cost, for: `${Math.round(holdMs)}ms` });
    } catch (error) {
      return this.#withoutServer(error);
    }
  }

  /** Ends a reservation at its real cost: the rest is given back, or the excess charged. It is sent once. */
  commit(reservation, cost) {
    return this.#settle(reservation, 'POST', '/commit', { cost });
  }

  /** Ends a reservation and gives all of it back. It is sent once. */
  cancel(reservation) {
    return this.#settle(reservation, 'DELETE', '');
  }

  async #settle(reservation, method, path, body) {
    if (reservation == null) return settled('nothing');
    try {
      const { told } = await this.#exchange(method, `/v1/reservations/${encodeURIComponent(reservation)}${path}`, body, 'given_back');
      return settled('settled', told);
    } catch (error) {
      if (error instanceof Refused && error.problem.code === 'not_reserved') return settled('not_reserved');
      if (!(error instanceof Unreachable)) throw error;
      this.#tell(error);
      return settled('unknown', {}, error);
    }
  }

  async #decide(path, body) {
    const { told, fields, text } = await this.#exchange('POST', path, body, 'allowed');
    return new Decision(told, fields, told.allowed ? '' : text);
  }

  /** What the application's own callback throws, or rejects with, is printed: it must not keep `onFailure` from deciding. */
  #tell(error) {
    const failed = (fault) => console.error('tidegate: onError failed with', fault, 'told of:', error.message);
    try {
      Promise.resolve(this.#onError(error)).catch(failed);
    } catch (fault) {
      failed(fault);
    }
  }

  #withoutServer(error) {
    if (!(error instanceof Unreachable)) throw error;
    this.#tell(error);
    const allowed = this.#onFailure === 'allow';
    return new Decision({ allowed, reason: 'unreachable', retry_after_ms: allowed ? null : RETRY_AFTER_FAILURE_MS }, {}, '', error);
  }

  /**
   * Sends it and reads the JSON of a decision. Anything else is a refusal, if the request is at fault, or as good as no answer. 501 is a
   * refusal, too: this store or this algorithm cannot do it. 408 is none: the request came too slowly.
   */
  async #exchange(method, path, body, member) {
    // The timer is cleared when the answer is there: one that runs on would keep a process from ending.
    const aborter = new AbortController();
    const timer = setTimeout(() => aborter.abort(), this.#deadlineMs);
    let answer;
    let text;
    try {
      answer = await this.#send(method, path, body && JSON.stringify(body), aborter.signal);
      text = await answer.text();
    } catch (cause) {
      throw new Unreachable(`${aborter.signal.aborted ? 'no answer' : reasonOf(cause)} within ${this.#deadlineMs} ms`, { cause });
    } finally {
      clearTimeout(timer);
    }
    const told = parsed(text);
    if ([200, 429].includes(answer.status) && told?.[member] !== undefined) return { told, text, fields: passedOn(answer.headers) };
    const isRefusal = (answer.status >= 400 && answer.status < 500 && answer.status !== 408) || answer.status === 501;
    if (isRefusal && told?.code) throw new Refused(told);
    throw new Unreachable(`the answer is no decision: ${answer.status} ${text.slice(0, 200)}`);
  }

  /** Tries again, until the deadline, while the server refuses connections: nothing was sent then. */
  async #send(method, path, body, signal) {
    for (let pauseMs = RETRY_PAUSE_MS; ; pauseMs *= 2) {
      try {
        // In the global scope, as browsers want it.
        return await this.#fetch.call(globalThis, this.#server + path, { method, headers: this.#headers, body, signal, redirect: 'error', cache: 'no-store' });
      } catch (error) {
        if (signal.aborted || !wasRefused(error)) throw error;
        await pause(pauseMs, signal);
      }
    }
  }
}

const settled = (outcome, { cost = null, given_back: givenBack = null, excess = null } = {}, error = null) => ({ outcome, cost, givenBack, excess, error });
const seconds = (ms) => String(Math.ceil(ms / 1000)); // Rounded up: never tell a client to come too early.
const environment = (name) => globalThis.process?.env?.[name];
const reasonOf = (error) => error.cause?.message || error.cause?.code || error.message;

/** Node tells by a code; of a name with several addresses, one for each. Browsers do not tell, and do not try again. */
function wasRefused({ cause }) {
  return cause?.code === 'ECONNREFUSED' || Boolean(cause?.errors?.every(({ code }) => code === 'ECONNREFUSED'));
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** RateLimit, RateLimit-Policy and Retry-After as the server sent them. */
function passedOn(headers) {
  const names = ['RateLimit-Policy', 'RateLimit', 'Retry-After'].filter((name) => headers.has(name));
  return Object.fromEntries(names.map((name) => [name, headers.get(name)]));
}
