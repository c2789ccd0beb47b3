// A real server for the tests: `tidegate serve` on a free port, which can be killed, stopped and started again.
import assert from 'node:assert/strict';
import { spawn, execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const TIDEGATE = process.env.TIDEGATE ?? 'tidegate';
const POLICY = new URL('../../policy.toml', import.meta.url).pathname;
export const SLOWNESS = Number(process.env.SLOWNESS ?? 1);
/** Of clients whose server does not answer. */
export const DEADLINE_MS = 300 * SLOWNESS;
/** For what is about answers, and not about time. */
export const LONG = { deadlineMs: 20000 * SLOWNESS };

export class Server {
  static async start({ tokens = false, tls = false } = {}) {
    const server = new Server();
    server.folder = mkdtempSync(join(tmpdir(), 'tidegate-'));
    server.variables = {};
    if (tokens) server.newToken();
    if (tls) server.certify();
    await server.start();
    return server;
  }

  path(name) {
    return join(this.folder, name);
  }

  /** On a free port, or again on the one that it had. */
  async start() {
    const env = { ...process.env, ...this.variables };
    this.process = spawn(TIDEGATE, ['serve', '--config', POLICY], { env, stdio: ['ignore', 'pipe', 'ignore'] });
    for await (const line of createInterface({ input: this.process.stdout })) {
      if (line.startsWith('listening on http')) this.url = line.split(' ').at(-1);
      if (line.startsWith('policy: ')) break;
    }
    this.variables.TIDEGATE_DOORS__HTTP = this.url.split('//')[1];
  }

  async kill() {
    const ended = once(this.process, 'exit');
    this.process.kill('SIGKILL');
    await ended;
  }

  /** It takes connections, by its backlog, and answers nothing. */
  async stopped(scene) {
    this.process.kill('SIGSTOP');
    while (!readFileSync(`/proc/${this.process.pid}/stat`, 'utf8').includes(') T ')) await sleep(1);
    try {
      await scene();
    } finally {
      this.process.kill('SIGCONT');
    }
  }

  async close() {
    if (this.process.exitCode === null && this.process.signalCode === null) await this.kill();
    rmSync(this.folder, { recursive: true });
  }

  newToken() {
    this.variables.TIDEGATE_ACCESS__TOKENS = this.path('tokens.toml');
    const words = ['token', 'new', '--name', 'test', '--scope', 'check', '--file', this.path('tokens.toml')];
    this.token = execFileSync(TIDEGATE, words, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  }

  certify() {
    const words = 'req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1';
    execFileSync('openssl', [...words.split(' '), '-keyout', this.path('key.pem'), '-out', this.path('cert.pem')], { stdio: 'ignore' });
    this.variables.TIDEGATE_TLS__HTTP__CERT = this.path('cert.pem');
    this.variables.TIDEGATE_TLS__HTTP__KEY = this.path('key.pem');
  }
}

/** Reads what comes on each connection and goes on as `serve` says: its address, and how many came. */
export async function oddServer(serve, scene) {
  const read = [];
  const sockets = new Set();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.once('data', (data) => { read.push(data); serve(socket); });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  try {
    await scene(`http://127.0.0.1:${server.address().port}`, read);
  } finally {
    sockets.forEach((socket) => socket.destroy());
    server.close();
  }
}

/** No hang: what a busy machine needs beyond the deadline is far below what a hang takes. */
export async function withinDeadline(scene) {
  const begun = performance.now();
  const told = await scene();
  const took = performance.now() - begun;
  assert.ok(took < DEADLINE_MS + 1000 * SLOWNESS, `${took} ms with a deadline of ${DEADLINE_MS} ms`);
  return told;
}
