// A small picture of usage over time, without words. Samples are time, used, total, time, and so on; each holds until
// the next.
import { s } from './dom.js';

export function spark(samples, { since, until }) {
  let top = 1;
  for (let i = 2; i < samples.length; i += 3) top = Math.max(top, samples[i]);
  const x = (t) => (100 * (Math.max(t, since) - since) / Math.max(1, until - since)).toFixed(2);
  const y = (used) => (40 - 38 * used / top).toFixed(2);
  const points = [];
  for (let i = 0; i < samples.length; i += 3) {
    const end = i + 3 < samples.length ? samples[i + 3] : until;
    points.push(`${x(samples[i])},${y(samples[i + 1])}`, `${x(end)},${y(samples[i + 1])}`);
  }
  return s('svg', { viewBox: '0 0 100 40', preserveAspectRatio: 'none', class: 'spark', 'aria-hidden': 'true' },
    s('polyline', { class: 'used', points: points.join(' ') }));
}
