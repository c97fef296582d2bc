// Usage over time. Samples are time, used, total, time, and so on; each holds until the next.
import { h, s, number, when } from './dom.js';

function steps(samples, since, until, top, which) {
  const points = [];
  const x = (t) => (100 * (Math.max(t, since) - since) / Math.max(1, until - since)).toFixed(2);
  const y = (v) => (40 - 38 * v / top).toFixed(2);
  for (let i = 0; i < samples.length; i += 3) {
    const end = i + 3 < samples.length ? samples[i + 3] : until;
    points.push(`${x(samples[i])},${y(samples[i + which])}`, `${x(end)},${y(samples[i + which])}`);
  }
  return points;
}

const line = (name, points) => s('polyline', { class: name, points: points.join(' ') });

function picture(samples, since, until, top, label, withTotal) {
  const used = steps(samples, since, until, top, 1);
  const parts = [];
  if (withTotal && used.length) {
    const [from] = used[0].split(','), [to] = used[used.length - 1].split(',');
    parts.push(s('polygon', { class: 'area', points: `${from},40 ${used.join(' ')} ${to},40` }), line('total', steps(samples, since, until, top, 2)));
  }
  return s('svg', { viewBox: '0 0 100 40', preserveAspectRatio: 'none', role: 'img', 'aria-label': label }, ...parts, line('used', used));
}

const highest = (samples, which) => { let top = 1; for (let i = which; i < samples.length; i += 3) top = Math.max(top, samples[i]); return top; };

// spark is a small picture without words.
export function spark(samples, { since, until }) {
  const svg = picture(samples, since, until, highest(samples, 2), 'usage over time', false);
  svg.setAttribute('class', 'spark');
  return svg;
}

// chart is the whole picture, with the most that was used as its top where that is far from the total.
export function chart(samples, { since, until }) {
  if (!samples.length) return h('p', { class: 'soft' }, 'No sample was taken yet: there is one a minute.');
  const used = highest(samples, 1), total = highest(samples, 2);
  const top = used * 3 > total ? total : used * 1.25;
  const now = samples[samples.length - 2] ?? 0;
  return h('div', {},
    picture(samples, since, until, top, `${number(now)} in use now, at most ${number(used)} since ${when(since)}`, top === total),
    h('div', { class: 'axis' },
      h('span', {}, `${when(since)}`),
      h('span', {}, `most in use: ${number(used)}; top of the picture: ${number(Math.round(top))}${top === total ? ', all of the pool' : ''}`),
      h('span', {}, 'now')));
}
