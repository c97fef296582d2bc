// What the axes of the chart say. No two ticks of an axis have one label.
import { compact } from './dom.js';

const two = (n) => String(n).padStart(2, '0');

// times label a time axis: the hour, with seconds where ticks are less than a minute apart, or the day where one begins.
export function times(splits) {
  const fine = splits.some((seconds) => seconds % 60);
  return splits.map((seconds) => {
    const t = new Date(seconds * 1000), [hour, minute, second] = [t.getHours(), t.getMinutes(), t.getSeconds()];
    if (hour + minute + second === 0) return t.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
    return `${two(hour)}:${two(minute)}${fine ? `:${two(second)}` : ''}`;
  });
}

// counts label an axis of numbers. Parts of an address have no label, nor has what would read as the tick before.
export function counts(splits) {
  const labels = splits.map((n) => (Number.isInteger(n) ? compact(n) : ''));
  return labels.map((label, i) => (i && label === labels[i - 1] ? '' : label));
}
