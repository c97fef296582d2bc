// The page: what is looked at, and when it is read anew.
import { Refused, changed, forget, get, useToken } from './api.js';
import { chart, spark } from './chart.js';
import { byId, h, number, percent } from './dom.js';
import { AddressMap } from './map.js';
import { describe, ranges, table } from './owners.js';
import { paint, colours, words } from './uses.js';

const pause = 5000;
let pools = [], trends = { since: 0, until: 0, pools: {} }, chosen, wanted, told, trendsAt = 0, read = 0;

const map = new AddressMap(byId('map'), { show, look });
const poolOf = (id) => pools.find((p) => p.id === id);
const share = (p) => (p.total ? p.used / p.total : 0);
// grade is how worried to be: the tiers of the pool's own conditions.
const grade = (p) => (p.ready === 'False' || p.waiting || share(p) >= 0.95 ? 'bad' : share(p) >= 0.85 || p.outOfRange ? 'warn' : '');

// put shows new content where it differs: what has not changed does not flicker, nor lose its focus.
function put(id, ...content) {
  const next = h('div', {}, ...content), at = byId(id);
  if (at.innerHTML !== next.innerHTML || next.querySelector('canvas, a, button')) at.replaceChildren(...next.childNodes);
}

async function refresh() {
  try {
    const list = await changed('pools');
    if (Date.now() - trendsAt > 60000 || (list && list.pools.some((p) => !trends.pools[p.id]))) {
      trends = await get('usage');
      trendsAt = Date.now();
      if (!list) listPools();
    }
    if (list) { pools = list.pools; notice(list); listPools(); }
    if (!poolOf(chosen)) choose(wanted && poolOf(wanted) ? wanted : sorted()[0]?.id);
    else if (list) header();
    await Promise.all([readMap(), readUsage(), readWaiting()]);
    byId('login').hidden = true;
    byId('main').hidden = false;
    read = Date.now();
  } catch (err) {
    fail(err);
  }
  state();
}

function fail(err) {
  if (err instanceof Refused) {
    byId('login').hidden = false;
    byId('main').hidden = true;
    told = err.message;
  } else if (err.code !== 404) {
    told = 'the manager does not answer';
  }
}

function state() {
  const late = Date.now() - read > 3 * pause, at = new Date(read).toLocaleTimeString('en-GB');
  byId('state').className = late ? 'stale' : '';
  byId('state').textContent = late ? `${told ?? 'not read'}${read ? `; as of ${at}` : ''}` : `as of ${at}`;
}

function notice({ elected }) {
  const others = pools.filter((p) => !p.holder).length;
  const text = !elected ? 'This replica is not the leader. Open the page of the leader.'
    : !pools.length ? 'There are no pools yet.'
      : others ? `Another manager grants from ${others === pools.length ? 'these pools' : `${others} of these pools`}: what is shown of them may be behind.` : '';
  byId('notice').textContent = text;
  byId('notice').hidden = !text;
}

function sorted() {
  const rank = { bad: 0, warn: 1, '': 2 };
  const filter = byId('filter').value.trim().toLowerCase();
  const found = pools.filter((p) => `${p.namespace ?? ''}/${p.name} ${p.addresses}`.toLowerCase().includes(filter));
  return tree(found.sort((a, b) => rank[grade(a)] - rank[grade(b)] || share(b) - share(a)));
}

// tree puts pools below the one that they are carved from, where that is there, at the place of the first of them.
function tree(found) {
  const ids = new Set(found.map((p) => p.id)), out = [], placed = new Set();
  const root = (p, depth = 0) => (ids.has(p.parent) && depth < ids.size ? root(poolOf(p.parent), depth + 1) : p);
  const add = (p, level) => {
    if (placed.has(p.id)) return;
    placed.add(p.id);
    out.push({ ...p, level });
    for (const child of found) if (child.parent === p.id) add(child, level + 1);
  };
  for (const p of found) add(root(p), 0);
  return out;
}

function listPools() {
  const most = 200, shown = sorted();
  const items = shown.slice(0, most).map((p) => {
    const note = p.ready === 'False' ? p.readyReason : p.waiting ? `${number(p.waiting)} waiting` : '';
    return h('li', { class: p.level ? `below below-${Math.min(p.level, 4)}` : '' }, h('a', { href: `#${encodeURIComponent(p.id)}`, class: grade(p), 'aria-current': p.id === chosen && 'true' },
      h('span', { class: 'name' }, [p.namespace, p.name].filter(Boolean).join('/')),
      h('span', { class: 'share' }, percent(p.used, p.total)),
      bar(p),
      h('span', { class: note ? 'note bad' : 'note' }, note || `${number(p.used)} of ${number(p.total)} · ${p.addresses}`),
      trends.pools[p.id]?.length > 3 ? spark(trends.pools[p.id], trends) : ''));
  });
  if (shown.length > most) items.push(h('li', { class: 'soft' }, `and ${number(shown.length - most)} more: filter`));
  const focused = document.activeElement?.getAttribute?.('href'), list = byId('pools');
  const top = list.parentElement.scrollTop;
  list.replaceChildren(...items);
  list.parentElement.scrollTop = top;
  if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function bar(p) {
  const fill = h('div');
  fill.style.width = `${100 * share(p)}%`;
  return h('div', { class: `bar ${grade(p)}` }, fill);
}

function choose(id) {
  chosen = id;
  byId('pool').hidden = !poolOf(id);
  byId('found').hidden = true;
  if (!poolOf(id)) return;
  for (const name of ['map', 'usage', 'waiting', 'owners']) forget(name);
  header();
  listPools();
}

function header() {
  const p = poolOf(chosen);
  const figure = (name, value, bad) => h('div', { class: bad ? 'bad' : '' }, h('dt', {}, name), h('dd', {}, value));
  const what = p.prefixes ? `prefixes of /${p.prefixes}` : 'addresses';
  put('head', h('h2', {}, p.name, ' ', h('small', {}, `${p.kind}${p.namespace ? ` in ${p.namespace}` : ''} · ${p.addresses}`, p.parent ? h('a', { href: `#${encodeURIComponent(p.parent)}` }, ` carved from ${p.parent.split('/').filter(Boolean).slice(1).join('/')}`) : '')),
    h('p', { class: p.ready === 'False' ? 'ready bad' : 'ready soft' }, p.ready === 'False' ? `Not ready, ${p.readyReason}: ${p.readyMessage}` : p.readyMessage ?? ''),
    h('dl', { class: 'figures' }, figure('in use', percent(p.used, p.total), share(p) >= 0.95), figure(`${what} in use`, number(p.used)),
      figure('of', number(p.total)), figure('can be handed out now', number(p.available), p.total && !p.available),
      figure('largest free block', number(p.largestFree)), figure('waiting', number(p.waiting ?? 0), p.waiting),
      ...(p.outOfRange ? [figure('in use, outside the spec', number(p.outOfRange), true)] : [])));
}

async function readMap() {
  if (!chosen) return;
  const id = chosen, grid = await changed('map', { pool: id });
  if (!grid || id !== chosen) return;
  byId('frame').hidden = byId('told').hidden = !grid.runs;
  if (grid.runs) { map.set(grid); return; }
  put('crumbs', h('span', { class: 'soft' }, grid.extents.length ? 'Too large for a map: what is not free is listed.' : 'Its spec names no addresses that could be served.'));
  put('legend', grid.ranges ? ranges(grid) : '');
  if (grid.extents.length) await readOwners(grid.extents[0][0], grid.extents[grid.extents.length - 1][1]);
}

async function readUsage() {
  if (!chosen) return;
  const id = chosen, history = await changed('usage', { pool: id });
  if (history && id === chosen) put('usage', chart(history.pools[id] ?? [], history));
}

async function readWaiting() {
  if (!chosen) return;
  byId('waiting-card').hidden = !poolOf(chosen)?.waiting;
  if (!poolOf(chosen)?.waiting) return;
  const id = chosen, list = await changed('waiting', { pool: id });
  if (list && id === chosen) put('waiting', table(list));
}

// look shows what goes with the map: the way here, what the colours mean, who is in it.
async function look({ start, n }) {
  const names = map.names();
  put('crumbs', ...names.map((name, i) => (i === names.length - 1 ? h('span', { class: 'here' }, name) : h('button', { type: 'button', onclick: () => map.leave(i) }, name))),
    h('span', { class: 'scale' }, map.size === 1 ? 'one cell each' : `a cell is ${number(map.size)}; click to look into it`));
  const totals = map.totals(), colour = colours();
  put('legend', ...['free', ...map.uses].filter((use) => use === 'free' || totals[use]).map((use) => {
    const swatch = h('canvas', { width: 14, height: 14 });
    paint(swatch.getContext('2d'), colour, use, 0, 0, 14, 14);
    return h('span', { class: use === 'conflict' || use === 'noclaim' ? 'alarm' : '' }, swatch, words[use], h('b', {}, number(totals[use])));
  }));
  try {
    await readOwners(map.row.first(start), map.row.last(start + n - 1), (o) => map.find(o.first));
  } catch (err) { fail(err); }
}

async function readOwners(first, last, go) {
  const id = chosen, list = await changed('owners', { pool: id, first, last });
  if (list && id === chosen) put('owners', table(list, go));
}

let asked = 0;
// show tells who has what the cursor is on.
async function show(at) {
  const tip = byId('tip'), turn = ++asked;
  tip.hidden = !at;
  if (!at) return;
  const say = (...lines) => {
    tip.replaceChildren(h('b', {}, at.name), ...lines.map((line) => h('div', {}, line)));
    byId('told').textContent = [at.name, ...lines].join(': ');
  };
  const right = at.x > byId('frame').clientWidth / 2;
  tip.style.left = right ? '' : `${at.x + 8}px`;
  tip.style.right = right ? `${byId('frame').clientWidth - at.x + 34}px` : '';
  tip.style.top = `${at.y + 8}px`;
  const uses = Object.entries(at.counts);
  if (at.n > 1) { say(`${number(at.used)} of ${number(at.n)} in use, ${percent(at.used, at.n)}`, ...uses.map(([use, n]) => `${words[use]}: ${number(n)}`)); return; }
  say(words[uses[0]?.[0] ?? 'free']);
  if (!uses.length || uses[0][0] === 'reserved' || uses[0][0] === 'gateway') return;
  await new Promise((resolve) => { setTimeout(resolve, 60); });
  if (turn !== asked) return;
  try {
    const { owners } = await get('owners', { pool: chosen, first: at.first, last: at.last });
    if (turn === asked && owners.length) say(...owners.map(describe));
  } catch (err) { fail(err); }
}

async function search() {
  const q = byId('q').value.trim();
  if (!q) { byId('found').hidden = true; byId('pool').hidden = !poolOf(chosen); return; }
  let content;
  try {
    const list = await get('search', { q });
    content = [h('h3', {}, `“${q}”`), list.owners.length ? table(list, goTo) : h('p', {}, 'No pool knows it.')];
  } catch (err) { fail(err); content = [h('p', {}, err.message)]; }
  byId('found').replaceChildren(h('div', { class: 'card' }, ...content));
  byId('found').hidden = false;
  byId('pool').hidden = true;
}

// goTo shows an address on the map of its pool.
async function goTo(o) {
  wanted = o.pool;
  if (o.pool !== chosen) { choose(o.pool); history.replaceState(null, '', `#${encodeURIComponent(o.pool)}`); await Promise.all([readMap(), readUsage(), readWaiting()]); }
  byId('found').hidden = true;
  byId('pool').hidden = false;
  if (map.find(o.first)) byId('map').scrollIntoView({ block: 'center' });
}

function fromURL() {
  wanted = decodeURIComponent(location.hash.slice(1));
  if (poolOf(wanted) && (wanted !== chosen || !byId('found').hidden)) { choose(wanted); refresh(); }
}

byId('search').addEventListener('submit', (e) => { e.preventDefault(); search(); });
byId('q').addEventListener('search', search);
byId('filter').addEventListener('input', listPools);
byId('login').addEventListener('submit', (e) => { e.preventDefault(); useToken(byId('token').value); byId('token').value = ''; refresh(); });
addEventListener('hashchange', fromURL);
document.addEventListener('keydown', (e) => { if (e.key === '/' && !/INPUT/.test(e.target.tagName)) { e.preventDefault(); byId('q').focus(); } });

wanted = decodeURIComponent(location.hash.slice(1));
for (;;) {
  if (!document.hidden) await refresh();
  state();
  await new Promise((resolve) => { setTimeout(resolve, pause); });
}
