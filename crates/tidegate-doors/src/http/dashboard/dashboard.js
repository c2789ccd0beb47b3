// The dashboard: one stream of events (/v1/live), and what a person asks for. Whatever a client chose, such as a key, is put
// into the page as text, never as markup.

const $ = (id) => document.getElementById(id);
const HISTORY = 180;

const state = { last: null, history: new Map(), limiters: [], shown: null, token: sessionStorage.getItem('token') ?? '', streams: new Map() };

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'text') element.textContent = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function drawn(tag, attributes = {}, text = '') {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

const number = (n) => n >= 1e6 ? `${(n / 1e6).toFixed(n < 1e7 ? 2 : 1)}M` : n >= 1e4 ? `${(n / 1e3).toFixed(1)}k` : `${Math.round(n * 10) / 10}`;
const bytes = (n) => n >= 1 << 30 ? `${(n / (1 << 30)).toFixed(1)} GiB` : `${(n / (1 << 20)).toFixed(1)} MiB`;
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
// A key as text that cannot turn the text around it: characters that are not seen are shown by their numbers.
const shown = (key) => key.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
const path = (limiter, key) => `/v1/limiters/${encodeURIComponent(limiter)}/keys/${key}`;

function span(ms) {
  if (ms < 1000) return `${Math.ceil(ms)} ms`;
  const s = Math.ceil(ms / 1000);
  if (s < 120) return `${s} s`;
  return s < 7200 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

async function ask(method, where, body) {
  const headers = state.token ? { authorization: `Bearer ${state.token}` } : {};
  const answer = await fetch(where, { method, headers, body: body && JSON.stringify(body), cache: 'no-store' });
  if (answer.status === 401) $('signin').hidden = false;
  const text = await answer.text();
  let told;
  try { told = JSON.parse(text); } catch { told = { detail: text }; }
  return { status: answer.status, told };
}

// What was refused, and why.
const refusal = (told) => told.value ? `“${told.value}”: ${told.detail}` : told.detail;

// ---- the stream ----

async function follow() {
  for (;;) {
    try {
      await listen();
    } catch { /* told below, and tried again */ }
    status('disconnected', 'bad');
    await new Promise((done) => setTimeout(done, 1000));
  }
}

async function listen() {
  const headers = state.token ? { authorization: `Bearer ${state.token}` } : {};
  const answer = await fetch('/v1/live', { headers, cache: 'no-store' });
  if (answer.status === 401) {
    $('signin').hidden = false;
    status('a token is needed', 'bad');
    await new Promise((done) => { state.retry = done; });
    return;
  }
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  $('signin').hidden = true;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      const event = text.slice(0, end);
      if (event.startsWith('data: ')) take(JSON.parse(event.slice(6)));
    }
  }
}

function status(text, kind) {
  $('status').textContent = text;
  $('status').className = `pill ${kind}`;
}

function take(now) {
  const before = state.last;
  state.last = now;
  state.limiters = now.limiters;
  const health = now.health ?? { status: 'ok' };
  status(health.status === 'ok' ? 'live' : 'degraded', health.status === 'ok' ? 'good' : 'bad');
  if (before) {
    const seconds = Math.max(now.at - before.at, 0.2);
    const all = { allowed: 0, denied: 0, candidate: 0 };
    for (const limiter of now.limiters) {
      const old = before.limiters.find((other) => other.name === limiter.name);
      const rate = (counts, was, of) => Math.max(0, (counts?.[of] ?? 0) - (was?.[of] ?? 0)) / seconds;
      const isCandidate = limiter.role === 'candidate';
      const point = old ? {
        allowed: rate(limiter.counts, old.counts, 'allowed'),
        denied: isCandidate ? 0 : rate(limiter.counts, old.counts, 'denied'),
        candidate: isCandidate ? rate(limiter.counts, old.counts, 'denied') : rate(limiter.candidate?.counts, old.candidate?.counts, 'denied'),
      } : { allowed: 0, denied: 0, candidate: 0 };
      keep(limiter.name, point);
      for (const of of isCandidate ? ['candidate'] : ['allowed', 'denied', 'candidate']) all[of] += point[of];
    }
    keep('', all);
    $('allowed').textContent = number(all.allowed);
    $('denied').textContent = number(all.denied);
    latency(now.latency, before.latency);
  }
  if (now.table) {
    $('entries').textContent = number(now.table.entries);
    $('memory').textContent = `${bytes(now.table.bytes)} of ${bytes(now.table.max_bytes)}`;
  }
  choices();
  limiters();
  chart();
  showHealth(health, now);
  streams(now.streams);
}

function keep(name, point) {
  const points = state.history.get(name) ?? [];
  points.push(point);
  if (points.length > HISTORY) points.shift();
  state.history.set(name, points);
}

function latency(now, before) {
  if (!now || !before) return;
  const count = now.count - before.count;
  if (count <= 0) return;
  const found = now.up_to_us.findIndex(([, upTo], at) => upTo - before.up_to_us[at][1] >= count * 0.99);
  const us = found < 0 ? null : now.up_to_us[found][0];
  $('latency').textContent = us === null ? '> 1 s' : us < 1000 ? `≤ ${us} µs` : `≤ ${us / 1000} ms`;
}

// ---- what is shown of it ----

function choices() {
  const names = state.limiters.map((limiter) => limiter.name);
  for (const [select, fixed] of [[$('chart-of'), 1], [$('key-limiter'), 0]]) {
    const shown = [...select.options].slice(fixed).map((option) => option.value);
    if (shown.join('\n') === names.join('\n')) continue;
    const chosen = select.value;
    while (select.options.length > fixed) select.remove(fixed);
    names.forEach((name) => select.append(make('option', { value: name, text: name })));
    if (names.includes(chosen)) select.value = chosen;
  }
}

function limiters() {
  const body = $('limiters');
  const focused = document.activeElement?.dataset?.limiter;
  body.replaceChildren(...state.limiters.map((limiter) => {
    const point = (state.history.get(limiter.name) ?? []).at(-1) ?? { allowed: 0, denied: 0, candidate: 0 };
    const isCandidate = limiter.role === 'candidate';
    const candidate = isCandidate ? 'counted, decides nothing' : limiter.candidate ? limiter.candidate.limits.join(', ') : '–';
    const would = isCandidate || limiter.candidate ? `would deny ${number(point.candidate)}/s, ${number((isCandidate ? limiter : limiter.candidate).counts.denied)} in all` : '';
    const toggle = make('button', { class: 'switch', role: 'switch', 'aria-checked': String(limiter.enabled), 'aria-label': `${limiter.name} is enforced`, 'data-limiter': limiter.name, text: limiter.enabled ? 'on' : 'off', onclick: () => toggled(limiter) });
    return make('tr', {},
      make('td', {}, make('strong', { text: limiter.name }), make('div', { class: 'sub', text: limiter.algorithm })),
      make('td', { text: limiter.limits.join(', ') }),
      make('td', { class: 'n', 'data-label': 'allowed/s', text: number(point.allowed) }),
      make('td', { class: `n ${point.denied > 0 ? 'over' : ''}`, 'data-label': 'denied/s', text: number(point.denied) }),
      make('td', { class: 'n', 'data-label': 'denied in all', text: number(isCandidate ? 0 : limiter.counts.denied) }),
      make('td', candidate === '–' ? { class: 'none' } : { 'data-label': 'candidate' }, make('span', { text: candidate }), make('div', { class: 'sub would', text: would })),
      make('td', {}, toggle));
  }));
  if (focused) [...body.querySelectorAll('button')].find((button) => button.dataset.limiter === focused)?.focus();
}

async function toggled(limiter) {
  const { status: code, told } = await ask('POST', `/v1/limiters/${encodeURIComponent(limiter.name)}/${limiter.enabled ? 'disable' : 'enable'}`);
  say(code === 200 ? `${limiter.name} is ${told.enabled ? 'enforced' : 'off: everything is allowed'}` : refusal(told), code !== 200);
  audit();
}

function chart() {
  const svg = $('chart');
  const { width, height } = svg.getBoundingClientRect();
  const points = state.history.get($('chart-of').value) ?? [];
  const most = nice(Math.max(1, ...points.map((p) => Math.max(p.allowed + p.denied, p.candidate))));
  const left = 44, bottom = 18, x = (at) => left + (width - left) * (at + HISTORY - points.length) / (HISTORY - 1);
  const y = (value) => 6 + (height - bottom - 6) * (1 - value / most);
  const line = (of) => points.map((p, at) => `${at ? 'L' : 'M'}${x(at).toFixed(1)} ${y(of(p)).toFixed(1)}`).join('');
  const area = (of, base) => points.length < 2 ? '' : `${line(of)}${[...points.keys()].reverse().map((at) => `L${x(at).toFixed(1)} ${y(base(points[at])).toFixed(1)}`).join('')}Z`;
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    parts.push(drawn('line', { x1: left, x2: width, y1: y(most * share), y2: y(most * share) }));
    parts.push(drawn('text', { x: left - 8, y: y(most * share) + 4, 'text-anchor': 'end' }, number(most * share)));
  }
  for (const ago of width < 480 ? [180, 60] : [180, 120, 60]) parts.push(drawn('text', { x: left + (width - left) * (1 - ago / 180), y: height - 2, 'text-anchor': ago === 180 ? 'start' : 'middle' }, `${ago / 60} min ago`));
  parts.push(drawn('text', { x: width, y: height - 2, 'text-anchor': 'end' }, 'now'));
  parts.push(drawn('path', { class: 'allowed', d: area((p) => p.allowed, () => 0) }));
  parts.push(drawn('path', { class: 'denied', d: area((p) => p.allowed + p.denied, (p) => p.allowed) }));
  if (points.some((p) => p.candidate > 0)) parts.push(drawn('path', { class: 'candidate', d: line((p) => p.candidate) }));
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function showHealth(health, now) {
  const rows = [['State', health.status === 'ok' ? 'decisions are exact' : 'degraded']];
  if (health.store) rows.push(['Store', health.store.answers ? 'answers' : `does not answer: ${health.store.error}`], ['Decided without it', number(health.store.degraded_decisions)]);
  else rows.push(['Store', 'embedded, in this process']);
  (health.reasons ?? []).forEach((reason) => rows.push(['Reason', reason]));
  rows.push(['Server time', clock(now.at)]);
  $('health').replaceChildren(...rows.flatMap(([name, value]) => [make('dt', { text: name }), make('dd', { text: value })]));
}

async function streams(all) {
  $('streams-card').hidden = all.length === 0;
  for (const stream of all) {
    const { status: code, told } = await ask('GET', `/v1/streams/${encodeURIComponent(stream.name)}`);
    state.streams.set(stream.name, code === 200 ? told : null);
  }
  $('streams').replaceChildren(...all.flatMap((stream) => {
    const told = state.streams.get(stream.name);
    const events = (told?.snapshot ?? []).slice(-30);
    const head = `${stream.mode}, ${span(stream.duration_ms)}${told ? `, clock ${told.clock}` : ''}, ${stream.subscribers} subscribers${stream.failing ? ', failing' : ''}`;
    return [make('h3', { text: stream.name }), make('p', { class: 'note', text: head }),
      make('ul', { class: 'chips' }, ...events.map((event) => make('li', { class: `key ${event.status === 'Valid' ? '' : 'gone'}`, title: event.status === 'Valid' ? 'incubates' : 'invalidated', text: shown(event.event) })))];
  }));
}

async function first() {
  const by = $('top-by').value, all = [], lists = await Promise.all(state.limiters.map(async ({ name }) =>
    [name, await ask('GET', `/v1/limiters/${encodeURIComponent(name)}/top?by=${by}&n=12`)]));
  for (const [limiter, { status: code, told }] of lists) if (code === 200) told.keys.forEach((key) => all.push({ limiter, ...key, size: key.count ?? key.blocked_until }));
  all.sort((a, b) => b.size - a.size);
  const top = all.slice(0, 12), most = Math.max(1, ...top.map((key) => key.size));
  $('over').replaceChildren(...top.map((key) => {
    const name = key.key ?? key.binary_key, bar = make('span', { class: 'bar' });
    bar.style.width = by === 'blocked' ? '0' : `${100 * key.size / most}%`;
    const count = by === 'blocked' ? `until ${clock(key.blocked_until)}` : `${number(key.count)}${key.error ? ` ± ${number(key.error)}` : ''}`;
    const code = key.key === undefined ? key.binary_key : encodeURIComponent(key.key);
    return make('li', {}, make('button', { type: 'button', title: shown(name), onclick: () => look(key.limiter, code, name) }, bar,
      make('span', { class: 'name key', text: shown(name) }), make('span', { class: 'of', text: key.limiter }), make('span', { class: 'count', text: count })));
  }));
  $('over-note').textContent = top.length ? (by === 'blocked' ? '' : 'Of the last 5 to 10 minutes, in this server.') : 'Nobody, at the moment.';
}

// ---- one key ----

async function look(limiter, code, name) {
  state.shown = { limiter, code, name };
  $('key-limiter').value = limiter;
  $('key').value = name;
  const { status: answered, told } = await ask('GET', path(limiter, code));
  if (answered !== 200 && answered !== 429) {
    $('story').replaceChildren();
    $('act').hidden = true;
    return say(refusal(told), true);
  }
  const parts = [make('p', { class: `verdict ${told.allowed ? 'yes' : 'no'}`, text: told.allowed ? 'A request would be allowed.' : `A request would be denied: ${told.reason}${told.retry_after_ms === null ? '' : `, for ${span(told.retry_after_ms)}`}.` })];
  for (const one of told.explanation) {
    parts.push(make('h3', {}, make('span', { text: one.limiter }), ' ', make('span', { class: 'sub would', text: one.role === 'candidate' ? 'candidate' : '' })));
    parts.push(make('p', { class: 'note' }, 'key ', make('bdi', { class: 'key', text: shown(one.key ?? one.binary_key) })));
    const facts = [one.enabled ? null : 'disabled', one.unlimited ? 'unlimited' : null, one.override ? 'overridden' : null, one.match === null ? null : `match ${one.match}`, one.blocked_until ? `blocked until ${clock(one.blocked_until)}` : null, one.sketched ? 'told by the sketch' : null].filter(Boolean);
    if (facts.length) parts.push(make('p', { class: 'note', text: facts.join(', ') }));
    for (const limit of one.limits) parts.push(...meter(limit));
  }
  const latest = await ask('GET', `${path(limiter, code)}/decisions?n=10`);
  if (latest.status === 200 && latest.told.decisions.length) {
    parts.push(make('h3', { text: 'Latest decisions' }), make('ul', { class: 'log' }, ...latest.told.decisions.map((one) =>
      make('li', {}, make('time', { text: clock(one.at) }), make('span', { class: one.allowed ? '' : 'over', text: one.allowed ? 'allowed' : `denied, ${one.reason}` }), make('span', { text: `cost ${one.cost}, ${one.remaining} of ${one.limit} left` })))));
  }
  $('story').replaceChildren(...parts);
  $('act').hidden = false;
}

function meter(limit) {
  const total = limit.limit, left = limit.remaining ?? 0, used = total ? Math.min(1, 1 - left / total) : 1;
  const svg = drawn('svg', { viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  svg.append(drawn('rect', { x: 0, y: 0, width: used * 100, height: 8 }));
  return [make('div', { class: 'note', text: `${limit.rule}: ${left} left${limit.reset_after_ms ? `, clear in ${span(limit.reset_after_ms)}` : ''}` }), make('div', { class: `meter ${left === 0 ? 'full' : ''}` }, svg)];
}

function say(text, isBad = false) {
  $('said').textContent = text;
  $('said').className = `note ${isBad ? 'bad' : ''}`;
}

async function act(method, what, body, done) {
  const { limiter, code, name } = state.shown;
  const { status: answered, told } = await ask(method, `${path(limiter, code)}/${what}`, body);
  if (answered === 200) await look(limiter, code, name);
  say(answered === 200 ? done(told) : refusal(told), answered !== 200);
  audit();
  first();
}

const reason = () => $('act-reason').value.trim() ? { reason: $('act-reason').value.trim() } : {};
const time = () => $('act-for').value.trim() ? { for: $('act-for').value.trim() } : {};
$('block').addEventListener('click', () => act('PUT', 'block', { ...time(), ...reason() }, (told) => `Blocked until ${clock(told.blocked_until)}.`));
$('unblock').addEventListener('click', () => act('DELETE', 'block', undefined, (told) => told.unblocked ? 'Unblocked.' : 'It was not blocked; its history is forgotten.'));
$('override').addEventListener('click', () => act('PUT', 'limits', { limits: $('act-limits').value.split(',').map((limit) => limit.trim()).filter(Boolean), ...time(), ...reason() }, (told) => told.until ? `Overridden until ${clock(told.until)}.` : 'Overridden.'));
$('clear').addEventListener('click', () => act('DELETE', 'limits', undefined, (told) => told.cleared ? 'The limiter’s own limits hold again.' : 'There was no override.'));
$('find').addEventListener('submit', (event) => { event.preventDefault(); say(''); look($('key-limiter').value, encodeURIComponent($('key').value), $('key').value); });
$('act').addEventListener('submit', (event) => event.preventDefault());
$('signin').addEventListener('submit', (event) => {
  event.preventDefault();
  state.token = $('token').value.trim();
  sessionStorage.setItem('token', state.token);
  $('token').value = '';
  state.retry?.();
});

// ---- changes ----

async function audit() {
  const { status: answered, told } = await ask('GET', '/v1/audit?most=8');
  if (answered !== 200) return $('audit').replaceChildren(make('li', { text: answered === 403 ? 'This token may not read them.' : told.detail }));
  const entry = (one) => make('li', {}, make('time', { text: clock(one.at) }), make('strong', { text: one.what }), make('span', { text: one.limiter ?? '' }),
    make('bdi', { class: 'key', text: shown(one.key ?? one.binary_key ?? '') }), make('span', { text: one.detail ?? '' }), make('span', { class: 'sub', text: [one.who, one.why].filter(Boolean).join(': ') }));
  $('audit').replaceChildren(...(told.entries.length ? told.entries.map(entry) : [make('li', { text: 'None yet.' })]));
}

$('chart-of').addEventListener('change', chart);
$('top-by').addEventListener('change', first);
addEventListener('resize', chart);
setInterval(() => { if (state.last && !document.hidden) { first(); } }, 2000);
setInterval(() => { if (state.last && !document.hidden) { audit(); } }, 5000);
audit();
follow();
