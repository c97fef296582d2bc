// Tables of owners.
import { h, ago, number, when } from './dom.js';
import { words } from './uses.js';

const whose = (o) => [o.namespace, o.name].filter(Boolean).join('/');

// describe says in one line who has an address.
export function describe(o) {
  const parts = [words[o.use] ?? o.use];
  if (whose(o)) parts.push(whose(o));
  if (o.cluster) parts.push(`cluster ${o.cluster}`);
  if (o.until) parts.push(`until ${when(o.until)}`);
  if (o.since) parts.push(`since ${when(o.since)}`);
  if (o.ports) parts.push(`ports ${o.ports.join(', ')}`);
  if (o.others) parts.push(`also: ${o.others.join('; ')}`);
  return parts.join(' · ');
}

// table lists owners, those who wait, or both; go, where given, is called with the one whose address is clicked.
export function table({ owners, more }, go) {
  if (!owners.length) return h('p', { class: 'soft' }, 'Nobody.');
  const link = (o) => (go ? h('a', { href: '#', onclick: (e) => { e.preventDefault(); go(o); } }, o.range) : o.range);
  const columns = [
    ['Address', 'address', (o) => (o.range ? link(o) : '–'), owners.some((o) => o.range)],
    ['Pool', '', (o) => o.pool.replace(/^[^/]*\/+/, ''), owners.some((o) => o.pool)],
    ['Use', 'use', (o) => h('span', {}, h('span', { class: `dot ${o.use}` }), words[o.use] ?? o.use), owners.some((o) => o.use !== 'waiting')],
    ['Owner', '', (o) => h('span', {}, whose(o) || '–', o.ports ? h('div', { class: 'soft' }, o.ports.join(', ')) : '', o.others ? h('div', { class: 'soft' }, `also: ${o.others.join('; ')}`) : ''), true],
    ['Cluster', '', (o) => o.cluster ?? '', true],
    ['Since', 'when', (o) => (o.until ? `until ${when(o.until)}` : o.since ? `${when(o.since)} (${ago(o.since)})` : ''), true],
    ['What it was told', '', (o) => (o.use !== 'waiting' ? '' : o.reason ? `${o.reason}: ${o.message}` : 'nothing yet'), owners.some((o) => o.use === 'waiting')],
  ].filter(([, , , shown]) => shown);
  return grid(columns.map(([title]) => title), owners.map((o) => columns.map(([, name, cell]) => h('td', { class: name }, cell(o)))),
    more ? `Only the first ${number(owners.length)} are listed.` : '');
}

// ranges lists what is not free in a pool that is too large for a map.
export function ranges({ ranges: listed, uses, more }) {
  const rows = listed.map((r) => [
    h('td', { class: 'address' }, r.range), h('td', {}, number(r.n)),
    h('td', { class: 'use' }, h('span', { class: `dot ${uses[r.use]}` }), words[uses[r.use]]),
  ]);
  return grid(['Range', 'Number', 'Use'], rows, more ? `Only the first ${number(listed.length)} are listed.` : '');
}

function grid(titles, rows, note) {
  return h('div', { class: 'scroll' },
    h('table', {}, h('thead', {}, h('tr', {}, ...titles.map((t) => h('th', { scope: 'col' }, t)))), h('tbody', {}, ...rows.map((cells) => h('tr', {}, ...cells)))),
    note ? h('p', { class: 'soft' }, note) : '');
}
