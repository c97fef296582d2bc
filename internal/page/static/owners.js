// Tables of owners, leases and ranges.
import { h, ago, number, when } from './dom.js';
import { words } from './uses.js';

const whose = (o) => [o.namespace, o.name].filter(Boolean).join('/');
const portsOf = (o) => (o.ports?.length ? o.ports.join(', ') + (o.morePorts ? `, and ${number(o.morePorts)} more` : '') : '');
export const poolName = (id) => id.split('/').filter(Boolean).slice(1).join('/');

// describe says in one line who has an address.
export function describe(o) {
  const parts = [words[o.use] ?? o.use];
  if (whose(o)) parts.push(whose(o));
  if (o.cluster) parts.push(`Cluster ${o.cluster}`);
  if (o.until) parts.push(`until ${when(o.until)}`);
  if (o.since) parts.push(`since ${when(o.since)}`);
  if (portsOf(o)) parts.push(`ports ${portsOf(o)}`);
  if (o.deleting) parts.push('being deleted');
  if (o.others) parts.push(`also held by ${o.others.join('; ')}`);
  return parts.join(' · ');
}

const dot = (use) => h('span', { class: `dot ${use}`, 'aria-hidden': 'true' });
const age = (o) => (o.until ? `until ${when(o.until)}` : o.since ? h('span', { title: when(o.since) }, ago(o.since)) : '');

// table lists owners, those who wait, or both; go, where given, is called with the one whose address is clicked.
export function table(name, { owners, more }, go) {
  if (!owners.length) return h('p', { class: 'soft' }, 'None.');
  const link = (o) => (go ? h('button', { type: 'button', class: 'link', onclick: () => go(o) }, o.range) : o.range);
  const waits = owners.some((o) => o.use === 'waiting');
  const detail = (text) => (text ? h('div', { class: 'soft' }, text) : '');
  return grid(name, [
    ['Address', 'address', (o) => (o.range ? link(o) : '–'), owners.some((o) => o.range)],
    ['Pool', '', (o) => poolName(o.pool), owners.some((o) => o.pool)],
    ['Use', 'use', (o) => h('span', {}, dot(o.use), words[o.use] ?? o.use), owners.some((o) => o.use !== 'waiting')],
    ['Owner', '', (o) => h('span', {}, whose(o) || '–', detail(portsOf(o)), detail(o.others && `also held by ${o.others.join('; ')}`), detail(o.deleting && 'being deleted')), true],
    ['Cluster', '', (o) => o.cluster ?? '', owners.some((o) => o.cluster)],
    ['Age', 'when', age, true],
    ['Reason', '', (o) => (o.use !== 'waiting' ? '' : o.reason ? `${o.reason}: ${o.message}` : 'not served yet'), waits],
  ], owners, more);
}

// stateOf says how a lease is.
function stateOf(o) {
  if (o.use === 'waiting') return { bad: true, text: 'no address', more: o.reason ? `${o.reason}: ${o.message}` : 'not served yet' };
  if (o.deleting) return { bad: false, text: 'being deleted', more: o.announced === 'False' ? `${o.reason}: ${o.message}` : '' };
  if (o.announced === 'False') return { bad: true, text: 'not announced', more: `${o.reason}: ${o.message}` };
  if (o.announced === 'True') return { bad: false, text: 'announced', more: o.message };
  return { bad: false, text: o.ports ? 'has a Service' : 'has no Service', more: '' };
}

// leases lists the leases of a pool: which tenant has which, the Services on it, and how it is.
export function leases({ owners, more }, go) {
  if (!owners.length) return h('p', { class: 'soft' }, 'None yet.');
  const ports = (o) => h('ul', { class: 'ports' }, ...(o.ports ?? []).map((p) => h('li', {}, p)), o.morePorts ? h('li', {}, `and ${number(o.morePorts)} more`) : '');
  const state = (o) => {
    const { bad, text, more: why } = stateOf(o);
    return h('span', {}, h('b', { class: bad ? 'bad' : '' }, text), why ? h('div', { class: 'soft' }, why) : '');
  };
  return grid('Leases', [
    ['Address', 'address', (o) => (o.range ? h('button', { type: 'button', class: 'link', onclick: () => go(o) }, o.range) : '–'), true],
    ['Namespace', '', (o) => o.namespace, true],
    ['Lease', '', (o) => o.name, true],
    ['Ports and Services', '', (o) => (o.ports ? ports(o) : '–'), true],
    ['State', '', state, true],
    ['Age', 'when', age, true],
  ], owners, more);
}

// ranges lists ranges by use: of a pool that is too large for a map, or of what a map shows.
export function ranges(name, listed, more) {
  return grid(name, [
    ['Range', 'address', (r) => r.range, true], ['Addresses', 'count', (r) => number(r.n), true],
    ['Use', 'use', (r) => h('span', {}, dot(r.use), words[r.use]), true],
  ], listed, more);
}

// samples lists how full a pool was.
export function samples(listed) {
  return grid('Usage', [
    ['Time', 'when', (s) => when(s.at), true], ['In use', 'count', (s) => number(s.used), true], ['Total', 'count', (s) => number(s.total), true],
  ], listed, false);
}

// grid is a table that scrolls by itself; columns are title, class, cell, and whether it is shown.
export function grid(name, columns, rows, more) {
  const shown = columns.filter(([, , , is]) => is);
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `${name}, table` },
    h('table', {}, h('thead', {}, h('tr', {}, ...shown.map(([title, kind]) => h('th', { scope: 'col', class: kind }, title)))),
      h('tbody', {}, ...rows.map((row) => h('tr', {}, ...shown.map(([, kind, cell]) => h('td', { class: kind }, cell(row))))))),
    more ? h('p', { class: 'soft' }, `Only the first ${number(rows.length)} are listed.`) : '');
}
