// Drives the dashboard in Chromium: arguments are the server's address and a folder for screenshots. Writes a line for each thing
// that it has seen, and ends with 1 at the first that it has not.
import { chromium } from 'playwright-core';
import axe from 'axe-core';
import { mkdirSync } from 'node:fs';

const [, , server, shots] = process.argv;
mkdirSync(shots, { recursive: true });
const HOSTILE = ['<img src=x onerror=document.title="hacked">', 'x'.repeat(512), '\u202Edesrever\u202C'];
const SHOWN = [HOSTILE[0], HOSTILE[1], '\\u{202e}desrever\\u{202c}'];
// What the browser itself writes of a refusal (a denial, limits that are none, a limiter that keeps no decisions) is no error of the page.
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const troubles = [];

const hit = (limiter, key) => fetch(`${server}/v1/hit`, { method: 'POST', body: JSON.stringify({ limiter, key }) }).then((answer) => answer.status);
const expect = (what, is) => { if (!is) { console.log(`NOT ${what}`); process.exit(1); } console.log(what); };

// Load: traffic of some keys, more than their limit, for as long as this runs.
let running = true;
const load = (async () => {
  for (let n = 0; running; n += 1) {
    await Promise.all([hit('api', `user-${n % 7}`), hit('api', 'greedy'), hit('login', HOSTILE[n % 3])]);
    if (n % 40 === 0) await fetch(`${server}/v1/streams/orders/events`, { method: 'POST', body: `order-${n}` });
    await new Promise((done) => setTimeout(done, 15));
  }
})();

async function open(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on('console', (message) => { if (message.type() === 'error' && !/the server responded with a status of (400|429|501)/.test(message.text())) troubles.push(message.text()); });
  page.on('pageerror', (error) => troubles.push(String(error)));
  page.on('request', (request) => { if (!request.url().startsWith(server) && !request.url().startsWith('data:')) troubles.push(`asks ${request.url()}`); });
  await page.addInitScript(() => addEventListener('securitypolicyviolation', (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`)));
  await page.goto(server);
  await page.waitForFunction(() => document.getElementById('status').textContent === 'live');
  return page;
}

const page = await open({ colorScheme: 'light', viewport: { width: 1280, height: 900 } });
await page.waitForFunction(() => Number(document.getElementById('denied').textContent) > 0);
const drawn = () => page.locator('#chart path.denied').getAttribute('d');
const before = await drawn();
await page.waitForFunction((old) => document.querySelector('#chart path.denied').getAttribute('d') !== old, before);
expect('the chart moves under load', (await drawn()).length > 20);
const names = page.locator('#over .name');
await page.waitForFunction((hostile) => hostile.every((key) => [...document.querySelectorAll('#over .name')].some((name) => name.textContent === key)), SHOWN);
expect('hostile keys are text', (await page.title()) === 'Tidegate' && (await page.locator('#over img').count()) === 0);
expect('the busiest denied key is told', (await names.allTextContents()).includes('greedy'));
const row = (name) => page.locator('#limiters tr', { hasText: name });
await page.waitForFunction(() => /would deny [1-9]/.test(document.getElementById('limiters').textContent));
expect('a candidate is told beside the live limits', /would deny/.test(await row('api').textContent()));
await page.waitForFunction(() => /order-/.test(document.getElementById('streams').textContent));
const told = await page.locator('#streams').textContent();
await page.waitForFunction((old) => document.getElementById('streams').textContent !== old, told);
expect('streams update', true);

await page.selectOption('#key-limiter', 'api');
await page.fill('#key', 'customer 1/ü');
await page.click('text=Look up');
await page.waitForSelector('.verdict.yes');
expect('a key is found', (await page.locator('#story').textContent()).includes('customer 1/ü'));
await page.fill('#act-reason', 'a test');
await page.click('#block');
await page.waitForSelector('.verdict.no');
expect('a blocked key is denied over HTTP', (await hit('api', 'customer 1/ü')) === 429);
await page.click('#unblock');
await page.waitForSelector('.verdict.yes');
expect('an unblocked key is allowed', (await hit('api', 'customer 1/ü')) === 200);
await page.waitForFunction(() => /unblock/.test(document.getElementById('audit').textContent));
expect('changes are in the audit', /a test/.test(await page.locator('#audit').textContent()));
await page.fill('#act-limits', '1000 per hour');
await page.click('#override');
await page.waitForFunction(() => /overridden/.test(document.getElementById('story').textContent));
const limit = async () => (await (await fetch(`${server}/v1/hit`, { method: 'POST', body: JSON.stringify({ limiter: 'api', key: 'customer 1/ü' }) })).json()).limit;
expect('an override is in force', (await limit()) === 1000);
await page.click('#clear');
await page.waitForFunction(() => !/overridden/.test(document.getElementById('story').textContent));
expect('an override is cleared', (await limit()) === 5);
await page.fill('#act-limits', 'nonsense');
await page.click('#override');
await page.waitForSelector('#said.bad');
expect('a refusal is told', (await page.locator('#said').textContent()).includes('nonsense'));
const toggle = () => row('login').getByRole('switch');
await toggle().click();
await page.waitForFunction(() => [...document.querySelectorAll('#limiters [role=switch]')].some((it) => it.getAttribute('aria-checked') === 'false'));
expect('a limiter is switched off', (await hit('login', HOSTILE[0])) === 200);
await toggle().click();
await page.waitForFunction(() => [...document.querySelectorAll('#limiters [role=switch]')].every((it) => it.getAttribute('aria-checked') === 'true'));
await hit('login', HOSTILE[0]);
expect('and on again', (await hit('login', HOSTILE[0])) === 429);
await page.locator('#over button', { hasText: 'greedy' }).first().click();
await page.waitForFunction(() => document.getElementById('key').value === 'greedy');
await page.waitForSelector('text=Latest decisions');
expect('a key of the list tells its story and its latest decisions', /denied/.test(await page.locator('#story').textContent()));
await page.locator('#key').focus();
await page.keyboard.press('Tab');
expect('the keyboard goes from field to button', (await page.evaluate(() => document.activeElement.textContent)) === 'Look up');

// axe is put in by the debugging protocol: the page's own policy lets no script in.
async function serious(page) {
  const session = await page.context().newCDPSession(page);
  await session.send('Runtime.evaluate', { expression: axe.source });
  const { result } = await session.send('Runtime.evaluate', { expression: 'axe.run().then((found) => JSON.stringify(found.violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`)))', awaitPromise: true, returnByValue: true });
  return JSON.parse(result.value);
}

for (const [name, options] of [['light', { colorScheme: 'light', viewport: { width: 1280, height: 900 } }], ['dark', { colorScheme: 'dark', viewport: { width: 1280, height: 900 } }], ['narrow', { colorScheme: 'light', viewport: { width: 390, height: 844 } }]]) {
  const other = name === 'light' ? page : await open(options);
  if (name !== 'light') {
    await other.waitForFunction(() => Number(document.getElementById('denied').textContent) > 0 && document.querySelectorAll('#over li').length > 3);
    await other.locator('#over button', { hasText: 'greedy' }).first().click();
    await other.waitForSelector('.verdict');
    await other.waitForTimeout(6_000);
  }
  await other.screenshot({ path: `${shots}/${name}.png`, fullPage: true });
  const wide = await other.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  expect(`${name}: nothing is wider than the window`, !wide);
  const found = await serious(other);
  if (found.length) console.log(found.join('\n'));
  expect(`${name}: axe finds nothing serious`, found.length === 0);
}
running = false;
await load;
if (troubles.length) console.log(troubles.join('\n'));
expect('no error in the console, no violation of the policy, nothing asked of others', troubles.length === 0);
await browser.close();
