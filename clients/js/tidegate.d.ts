/** What is asked: one limiter by name and key, or every limiter of a domain that the attributes match. */
export type Request = (
  | { limiter: string; key: string; attributes?: undefined; domain?: undefined }
  | { attributes: Record<string, string>; domain?: string; limiter?: undefined; key?: undefined }
) & { cost?: number; peek?: boolean };

export interface Options {
  /** For a server that asks for one; by default what `TIDEGATE_TOKEN` has. */
  token?: string;
  /** No call takes longer; 250 by default. */
  deadlineMs?: number;
  /** What holds when the server does not answer within the deadline; 'allow' by default. */
  onFailure?: 'allow' | 'deny';
  /** Called whenever a decision is made without the server. */
  onError?: (error: Unreachable) => unknown;
  /** Another fetch than the global one, for example with certificates of its own. */
  fetch?: typeof globalThis.fetch;
}

export class Client {
  /** By default `TIDEGATE_SERVER`, or else http://127.0.0.1:7400. */
  constructor(server?: string, options?: Options);
  /** May this happen now? It is charged if so. */
  hit(limiter: string, key: string, cost?: number): Promise<Decision>;
  /** Would a hit be allowed? Nothing is charged. */
  peek(limiter: string, key: string, cost?: number): Promise<Decision>;
  /** Any request, also by attributes. */
  ask(request: Request): Promise<Decision>;
  /** Up to 1,000 requests in one round trip, each decided by itself and answered in its place. */
  hits(requests: Request[]): Promise<Array<Decision | Refused>>;
  /** Up to 32 requests that are charged together, if `allowed`, or not at all. */
  hitsTogether(requests: Request[]): Promise<{ allowed: boolean; answers: Decision[] }>;
  /** A hit whose cost can be corrected, by the decision's `reservation`, for `holdMs`: 30,000 by default. */
  reserve(limiter: string, key: string, cost?: number, options?: { holdMs?: number }): Promise<Decision>;
  /** Ends a reservation at its real cost: the rest is given back, or the excess charged. It is sent once. */
  commit(reservation: string | null, cost: number): Promise<Settled>;
  /** Ends a reservation and gives all of it back. It is sent once. */
  cancel(reservation: string | null): Promise<Settled>;
}

/** What became of a `commit` or a `cancel`. */
export interface Settled {
  /**
   * 'settled': the rest is given back. 'not_reserved': it had ended before, and what it had charged stays. 'nothing': there was no
   * reservation, and nothing was sent. 'unknown': no answer came, and `error` says why.
   */
  readonly outcome: 'settled' | 'not_reserved' | 'nothing' | 'unknown';
  readonly cost: number | null;
  readonly givenBack: number | null;
  readonly excess: number | null;
  readonly error: Unreachable | null;
}

/** Which requests of a middleware stay charged: all, only failures (a status of 400 or more), or only successes. */
export type Count = 'all' | 'failures' | 'successes';

/** An answer of the server, or one made by `onFailure` when there was none (then `error` says why). */
export class Decision {
  private constructor();
  readonly allowed: boolean;
  readonly reason: 'ok' | 'limited' | 'blocked' | 'disabled' | 'degraded' | 'cost_above_limit' | 'unreachable';
  readonly limiter: string | null;
  readonly limit: number | null;
  readonly remaining: number | null;
  readonly retryAfterMs: number | null;
  readonly resetAfterMs: number | null;
  readonly degraded: 'local' | 'allow' | 'deny' | null;
  /** RateLimit, RateLimit-Policy and Retry-After as the server sent them. */
  readonly fields: Readonly<Record<string, string>>;
  readonly error: Unreachable | null;
  /** Of a `reserve`: its name, for `commit` and `cancel`; null where there is nothing to give back. */
  readonly reservation: string | null;
  /** The HTTP status of a denial: 429, or 503 when it was made without the server. */
  readonly status: 429 | 503;
  /** The header fields for the application's own answer; `legacy` adds `X-RateLimit-*`. */
  headers(options?: { legacy?: boolean }): Record<string, string>;
  /** The body of a denial, as application/problem+json. */
  body(): string;
}

/** The server gave no decision within the deadline. Hits turn it into a decision by `onFailure`. */
export class Unreachable extends Error {}

/** The server refuses the request itself: an unknown limiter, a key that is too long, a token that may not. */
export class Refused extends Error {
  private constructor();
  readonly problem: Readonly<{ status: number; code: string; detail: string; field?: string; value?: string }>;
}
