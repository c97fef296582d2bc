// The page: what is looked at, and when it is read anew.
import { Refused, changed, forget, get, useToken } from './api.js';
import { UsageChart, summary } from './chart.js';
import { byId, h, number, percent, put } from './dom.js';
import { beside, family, hashOf, link, listPools, mostUrgent, reveal } from './list.js';
import { AddressMap } from './map.js';
import { describe, leases, poolName, ranges, samples, table } from './owners.js';
import { hourly } from './series.js';
import { alarming, colours, paint, words } from './uses.js';

const pause = 5000, minute = 60000;
let pools = [], others = [], trends = { since: 0, until: 0, pools: {} }, chosen, wanted, problem, trendsAt = 0, usageAt = 0, read = 0;

const map = new AddressMap(byId('map'), { show, look });
const usage = new UsageChart(byId('usage'), (text) => { byId('usage-readout').textContent = text; });
const poolOf = (id) => pools.find((p) => p.id === id);
const list = () => listPools(pools, trends, chosen);

// say has a screen reader say what has changed.
function say(text) { if (byId('say').textContent !== text) byId('say').textContent = text; }

async function refresh() {
  try {
    const answer = await changed('pools');
    if (Date.now() - trendsAt > minute || (answer && answer.pools.some((p) => !trends.pools[p.id]))) {
      trends = await get('usage');
      trendsAt = Date.now();
      if (!answer) list();
    }
    if (answer) { pools = answer.pools; notice(answer); list(); }
    byId('login').hidden = true;
    byId('layout').hidden = false;
    if (!poolOf(chosen)) choose(wanted && poolOf(wanted) ? wanted : mostUrgent(pools)?.id);
    else if (answer) header();
    await readPool();
    if (problem) say('The page is up to date again.');
    problem = undefined;
    read = Date.now();
  } catch (err) {
    fail(err);
  }
  state();
}

const readPool = () => Promise.all([readMap(), readUsage(), readFamilies(), readWaiting(), readLeases()]);

function fail(err) {
  if (err instanceof Refused) {
    const first = byId('login').hidden;
    byId('login').hidden = false;
    byId('layout').hidden = true;
    byId('login-error').textContent = err.message;
    if (first) byId('token').focus();
    problem = 'not signed in';
  } else if (err.code !== 404) {
    problem = 'The manager does not answer';
  }
}

function state() {
  const late = Date.now() - read > 3 * pause, at = new Date(read).toLocaleTimeString('en-GB');
  byId('state').className = late ? 'stale' : '';
  byId('state').textContent = !late ? `as of ${at}` : [problem ?? 'loading', read ? `as of ${at}` : ''].filter(Boolean).join(', ');
  if (late && read && problem) say(`${problem}. What is shown is as of ${at}.`);
}

function notice({ elected }) {
  const others = pools.filter((p) => !p.holder).length;
  const text = !elected ? 'This replica is not the leader. Open the page of the leader.'
    : !pools.length ? 'There are no pools yet. Create a NetworkPool or a GlobalNetworkPool.'
      : others ? `Another manager serves ${others === pools.length ? 'these pools' : `${number(others)} of these pools`}. What this page shows of them may be out of date.` : '';
  byId('notice').textContent = text;
  byId('notice').hidden = !text;
}

function choose(id) {
  chosen = id;
  byId('pool').hidden = !poolOf(id);
  byId('found').hidden = true;
  if (!poolOf(id)) return;
  for (const name of ['map', 'usage', 'families', 'waiting', 'leases', 'owners']) forget(name);
  others = [];
  usageAt = 0;
  byId('usage-table').open = byId('map-table').open = false;
  document.title = `${poolName(id)} – Butler: address pools`;
  header();
  list();
  reveal();
}

function header() {
  const p = poolOf(chosen);
  const figure = (name, value, bad) => h('div', { class: bad ? 'bad' : '' }, h('dt', {}, name), h('dd', {}, value));
  const units = p.prefixes ? `Prefixes of /${p.prefixes}` : 'Addresses';
  put('head', h('h2', { id: 'pool-title' }, p.name), h('p', { class: 'soft' }, `${p.kind}${p.namespace ? ` in namespace ${p.namespace}` : ''} · ${p.addresses || 'no addresses'}`, p.parent ? ' · carved from ' : '', p.parent ? link(p.parent) : ''),
    p.ready === 'False' ? h('p', { class: 'ready bad' }, `Not ready: ${p.readyReason}: ${p.readyMessage}`) : p.readyMessage ? h('p', { class: 'ready soft' }, p.readyMessage) : '',
    h('dl', { class: 'figures' }, figure('In use', percent(p.used, p.total), p.full === 'bad'), figure(`${units} in use`, `${number(p.used)} of ${number(p.total)}`),
      figure('Free to hand out', number(p.available), p.total && !p.available && (!p.isParent || p.waiting)), figure('Largest free block', number(p.largestFree)),
      figure('Waiting', number(p.waiting ?? 0), p.waiting),
      ...(p.outOfRange ? [figure('In use outside the spec', number(p.outOfRange), true)] : [])));
  const carved = family(pools, p);
  byId('family-card').hidden = !carved;
  put('family', carved ?? '');
}

async function readMap() {
  if (!chosen) return;
  const id = chosen, grid = await changed('map', { pool: id });
  if (!grid || id !== chosen) return;
  for (const part of ['crumbs', 'legend', 'frame', 'map-help', 'map-table']) byId(part).hidden = !grid.runs;
  byId('ranges').hidden = Boolean(grid.runs);
  if (grid.runs) { map.set(grid); return; }
  const listed = (grid.ranges ?? []).map((r) => ({ ...r, use: grid.uses[r.use] }));
  put('ranges', h('p', { class: 'soft' }, grid.extents.length ? 'The pool is too large for a map. These are the ranges that are not free.' : 'The spec of this pool names no addresses that can be served.'),
    listed.length ? ranges('Ranges that are not free', listed, grid.more) : '');
  if (grid.extents.length) await readOwners(grid.extents[0][0], grid.extents[grid.extents.length - 1][1]);
}

// readUsage reads the history once a minute, as often as there is a sample.
async function readUsage() {
  if (!chosen || Date.now() - usageAt < minute) return;
  const id = chosen, history = await get('usage', { pool: id });
  if (id !== chosen) return;
  usageAt = Date.now();
  const known = history.pools[id] ?? [];
  byId('usage-text').textContent = summary(known, history);
  byId('usage').hidden = byId('usage-table').hidden = !known.length;
  usage.set(id, known, history);
  fillUsage();
}

function fillUsage() {
  if (byId('usage-table').open && usage.data) byId('usage-table').lastElementChild.replaceChildren(samples(hourly(usage.data)));
}

// readFamilies shows the pools of the other family of the same Clusters beside this one.
async function readFamilies() {
  if (!chosen) return;
  const id = chosen, answer = await changed('families', { pool: id });
  if (id !== chosen) return;
  others = (answer?.pools ?? others.map((p) => p.id)).map(poolOf).filter(Boolean);
  byId('families-card').hidden = !others.length;
  put('families', ...(others.length ? beside([poolOf(id), ...others], trends) : []));
}

// readMore reads a list of the pool, where it has one, into a card.
async function readMore(name, has, show) {
  byId(`${name}-card`).hidden = !has;
  if (!has) return;
  const id = chosen, answer = await changed(name, { pool: id });
  if (answer && id === chosen) show(answer);
}

const readWaiting = () => readMore('waiting', poolOf(chosen)?.waiting, (answer) => put('waiting', table('Waiting', answer)));

function readLeases() {
  const p = poolOf(chosen);
  return readMore('leases', p?.givesLeases || p?.leases, (answer) => {
    byId('leases-text').textContent = !p.givesLeases ? 'This pool gives no new leases: its spec.leases is not set.' : p.leaseQuota === undefined ? 'No quota: a namespace may have any number of leases.' : `Quota: ${number(p.leaseQuota)} for each namespace.`;
    put('leases', leases(answer, goTo));
  });
}

// look shows what goes with the map: the way here, what the colours mean, who is in it.
async function look({ start, n }) {
  const names = map.names(), prefixes = poolOf(chosen)?.prefixes;
  const leave = (i) => { map.leave(i); byId('map').focus({ preventScroll: true }); };
  put('crumbs', ...names.map((name, i) => (i === names.length - 1 ? h('span', { class: 'here' }, name) : h('button', { type: 'button', onclick: () => leave(i) }, name))),
    h('span', { class: 'scale' }, `one cell is ${map.size === 1 ? (prefixes ? 'one prefix' : 'one address') : `${number(map.size)} ${prefixes ? 'prefixes' : 'addresses'}; select one to open it`}`));
  const totals = map.totals(), colour = colours();
  put('legend', ...['free', ...map.uses].filter((use) => use === 'free' || totals[use]).map((use) => {
    const swatch = h('canvas', { width: 14, height: 14, 'aria-hidden': 'true' });
    paint(swatch.getContext('2d'), colour, use, 0, 0, 14, 14);
    const name = `${words[use]} `, count = h('b', {}, number(totals[use]));
    return alarming.has(use) ? h('li', { class: 'alarm' }, swatch, h('button', { type: 'button', class: 'link', onclick: () => lookAt(map.firstOf(use)) }, name, count)) : h('li', {}, swatch, name, count);
  }));
  fillMap();
  try {
    await readOwners(map.row.first(start), map.row.last(start + n - 1), (o) => lookAt(o.first));
  } catch (err) { fail(err); }
}

function fillMap() {
  if (!byId('map-table').open || !map.row) return;
  const { ranges: listed, more } = map.listed(200);
  byId('map-table').lastElementChild.replaceChildren(ranges('Addresses', listed, more));
}

async function readOwners(first, last, go) {
  const id = chosen, answer = await changed('owners', { pool: id, first, last });
  if (!answer || id !== chosen) return;
  byId('owners-text').textContent = `Of ${first} to ${last}.`;
  put('owners', table('Owners', answer, go));
}

let asked = 0;
// show tells who has what the cursor is on.
async function show(at) {
  const tip = byId('tip'), turn = ++asked;
  tip.hidden = !at;
  if (!at) return;
  const tell = (...lines) => {
    tip.replaceChildren(h('b', {}, at.name), ...lines.map((line) => h('div', {}, line)));
    byId('readout').textContent = [at.name, ...lines].join(': ');
  };
  const right = at.x > byId('frame').clientWidth / 2;
  tip.style.left = right ? '' : `${at.x + 8}px`;
  tip.style.right = right ? `${byId('frame').clientWidth - at.x + 34}px` : '';
  tip.style.top = `${at.y + 8}px`;
  const uses = Object.entries(at.counts);
  if (at.n > 1) { tell(`${number(at.used)} of ${number(at.n)} in use (${percent(at.used, at.n)})`, ...uses.map(([use, n]) => `${words[use]}: ${number(n)}`)); return; }
  tell(words[uses[0]?.[0] ?? 'free']);
  if (!uses.length || uses[0][0] === 'reserved' || uses[0][0] === 'gateway') return;
  await new Promise((resolve) => { setTimeout(resolve, 60); });
  if (turn !== asked) return;
  try {
    const { owners } = await get('owners', { pool: chosen, first: at.first, last: at.last });
    if (turn === asked && owners.length) tell(...owners.map(describe));
  } catch (err) { fail(err); }
}

function showPool() {
  byId('found').hidden = true;
  byId('pool').hidden = !poolOf(chosen);
}

async function search() {
  const q = byId('q').value.trim();
  if (!q) { showPool(); return; }
  let content, text;
  try {
    const answer = await get('search', { q });
    text = answer.owners.length ? `${answer.more ? 'More than ' : ''}${number(answer.owners.length)} found for “${q}”` : `Nothing found for “${q}”`;
    content = answer.owners.length ? table('Search results', answer, goTo) : h('p', {}, 'No pool has this address, and no claim, lease, allocation or Cluster has such a name.');
  } catch (err) { fail(err); text = 'Search'; content = h('p', {}, err.message); }
  byId('found-title').textContent = text;
  byId('results').replaceChildren(content);
  byId('found').hidden = false;
  byId('pool').hidden = true;
  say(text);
}

// goTo shows an address on the map of its pool.
async function goTo(o) {
  wanted = o.pool ?? chosen;
  if (wanted !== chosen) { choose(wanted); history.replaceState(null, '', hashOf(wanted)); await readPool(); }
  showPool();
  lookAt(o.first);
}

// lookAt moves to an address in the map.
function lookAt(address) {
  byId('map').focus({ preventScroll: true });
  if (map.find(address)) byId('map').scrollIntoView({ block: 'center' });
}

function fromURL() {
  wanted = decodeURIComponent(location.hash.slice(1));
  if (poolOf(wanted) && (wanted !== chosen || !byId('found').hidden)) { choose(wanted); say(`Pool ${poolName(wanted)}`); refresh(); }
}

byId('search').addEventListener('submit', (e) => { e.preventDefault(); search(); });
byId('q').addEventListener('search', search);
byId('close').addEventListener('click', () => { byId('q').value = ''; showPool(); byId('q').focus(); });
byId('filter').addEventListener('input', list);
byId('usage-table').addEventListener('toggle', fillUsage);
byId('map-table').addEventListener('toggle', fillMap);
byId('skip').addEventListener('click', (e) => { e.preventDefault(); byId(byId('found').hidden ? 'pool' : 'found').focus(); });
byId('login').addEventListener('submit', (e) => { e.preventDefault(); useToken(byId('token').value); byId('token').value = ''; refresh(); });
addEventListener('hashchange', fromURL);

wanted = decodeURIComponent(location.hash.slice(1));
for (;;) {
  if (!document.hidden) await refresh();
  state();
  await new Promise((resolve) => { setTimeout(resolve, pause); });
}
