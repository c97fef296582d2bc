// The list of pools, and the table of those that are carved from each other.
import { byId, h, number, percent } from './dom.js';
import { grid, poolName } from './owners.js';
import { spark } from './spark.js';

export const share = (p) => (p.total ? p.used / p.total : 0);
// grade is how much a pool is in trouble, for whatever reason; p.full is how bad it is that so much of it is used.
export const grade = (p) => p.grade ?? '';
export const hashOf = (id) => `#${encodeURIComponent(id)}`;
export const link = (id) => h('a', { href: hashOf(id) }, poolName(id));

export function bar(p) {
  const fill = h('div');
  fill.style.width = `${100 * share(p)}%`;
  return h('div', { class: `bar ${p.full ?? ''}`, 'aria-hidden': 'true' }, fill);
}

// urgent compares pools: those in trouble come first, then the fullest. That a parent is full of blocks is no trouble.
function urgent(a, b) {
  const rank = { bad: 0, warn: 1, '': 2 }, weight = (p) => (p.isParent && !grade(p) ? 0 : share(p));
  return rank[grade(a)] - rank[grade(b)] || weight(b) - weight(a);
}

// sorted puts the most urgent pools first; those that are carved are below their parent.
export function sorted(pools, filter) {
  return tree(pools.filter((p) => `${p.namespace ?? ''}/${p.name} ${p.addresses}`.toLowerCase().includes(filter)).sort(urgent));
}

// mostUrgent is the pool to begin with; undefined: there is none.
export const mostUrgent = (pools) => [...pools].sort(urgent)[0];

// tree puts pools below the one that they are carved from, where that is there, at the place of the first of them.
function tree(found) {
  const byID = new Map(found.map((p) => [p.id, p])), out = [], placed = new Set();
  const root = (p, depth = 0) => (byID.has(p.parent) && depth < byID.size ? root(byID.get(p.parent), depth + 1) : p);
  const add = (p, level) => {
    if (placed.has(p.id)) return;
    placed.add(p.id);
    out.push({ ...p, level });
    for (const child of found) if (child.parent === p.id) add(child, level + 1);
  };
  for (const p of found) add(root(p), 0);
  return out;
}

// listPools shows the list.
export function listPools(pools, trends, chosen) {
  const most = 200, shown = sorted(pools, byId('filter').value.trim().toLowerCase());
  const items = shown.slice(0, most).map((p) => {
    const note = p.ready === 'False' ? p.readyReason : p.waiting ? `${number(p.waiting)} waiting` : '';
    return h('li', { class: p.level ? `below below-${Math.min(p.level, 4)}` : '' }, h('a', { href: hashOf(p.id), class: grade(p), 'aria-current': p.id === chosen && 'true' },
      h('span', { class: 'name' }, [p.namespace, p.name].filter(Boolean).join('/')),
      h('span', { class: 'share' }, percent(p.used, p.total)),
      bar(p),
      h('span', { class: note ? 'note bad' : 'note' }, note || `${number(p.used)} of ${number(p.total)} · ${p.addresses}`),
      trends.pools[p.id]?.length > 3 ? spark(trends.pools[p.id], trends) : ''));
  });
  if (shown.length > most) items.push(h('li', { class: 'soft' }, `${number(shown.length - most)} more: enter a part of a name above`));
  if (!shown.length) items.push(h('li', { class: 'soft' }, pools.length ? 'No pool matches.' : 'There are no pools.'));
  const focused = document.activeElement?.getAttribute?.('href'), list = byId('pools');
  const top = list.parentElement.scrollTop, own = list.scrollTop;
  list.replaceChildren(...items);
  list.parentElement.scrollTop = top;
  list.scrollTop = own;
  if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

// reveal scrolls the list, not the page, to the pool that is shown.
export function reveal() {
  const item = byId('pools').querySelector('[aria-current]')?.getBoundingClientRect();
  for (const box of [byId('pools'), byId('pools').parentElement]) {
    const { top, bottom } = box.getBoundingClientRect();
    if (item && (item.top < top || item.bottom > bottom)) box.scrollTop += item.top - top - 6;
  }
}

// beside are pools side by side: the first is the one that is shown.
export const beside = (pools, trends) => pools.map((p, i) => h('div', {},
  i ? link(p.id) : h('b', { 'aria-current': 'true' }, poolName(p.id)),
  h('span', {}, `${number(p.used)} of ${number(p.total)} (${percent(p.used, p.total)})`),
  bar(p),
  h('span', { class: 'soft' }, `${number(p.available)} free · ${p.addresses}`),
  p.waiting ? h('span', { class: 'bad' }, `${number(p.waiting)} waiting`) : '',
  trends.pools[p.id]?.length > 3 ? spark(trends.pools[p.id], trends) : ''));

// family are the pools that a pool is carved from, itself, and those that are carved from it; nothing where it is alone.
export function family(pools, p) {
  const byID = new Map(pools.map((q) => [q.id, q])), rows = [{ p, level: 0 }];
  for (let up = byID.get(p.parent); up && !rows.some((r) => r.p === up); up = byID.get(up.parent)) {
    for (const r of rows) r.level++;
    rows.unshift({ p: up, level: 0 });
  }
  const level = rows.length, children = pools.filter((q) => q.parent === p.id).sort((a, b) => share(b) - share(a));
  if (!children.length && !p.parent) return undefined;
  const most = 100;
  rows.push(...children.slice(0, most).map((q) => ({ p: q, level })));
  const name = (r) => h('span', { class: `below-${Math.min(r.level, 4)}` }, r.level ? '└ ' : '', r.p === p ? h('b', { 'aria-current': 'true' }, poolName(p.id)) : link(r.p.id));
  return h('div', {}, grid('Carved pools', [
    ['Pool', 'tree', name, true],
    ['In use', 'wide', (r) => h('span', {}, `${number(r.p.used)} of ${number(r.p.total)} (${percent(r.p.used, r.p.total)})`, bar(r.p)), true],
    ['Free', 'count', (r) => number(r.p.available), true],
    ['Addresses', 'address', (r) => r.p.addresses, true],
    ['Waiting', 'count', (r) => number(r.p.waiting ?? 0), rows.some((r) => r.p.waiting)],
  ], rows, false),
  !byID.has(p.parent) && p.parent ? h('p', { class: 'soft' }, `Its parent ${poolName(p.parent)} is not known here.`) : '',
  children.length > most ? h('p', { class: 'soft' }, `${number(children.length - most)} more pools are carved from it.`) : '');
}
