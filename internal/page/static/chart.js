// Usage over time, drawn by uPlot (vendor/): axes, a legend, and the values under the cursor.
import { number, percent, span, when } from './dom.js';
import { series } from './series.js';
import { counts, times } from './ticks.js';
import { colours } from './uses.js';

const height = 200;

export class UsageChart {
  // tell is called with what the keys of the keyboard point at.
  constructor(at, tell) {
    Object.assign(this, { at, tell });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.rebuild());
    new ResizeObserver(() => this.fit()).observe(at);
    at.addEventListener('keydown', (e) => this.key(e));
    at.addEventListener('blur', () => this.point(-1));
  }

  // set shows another pool, or the same one as it is now.
  set(id, samples, { since, until }) {
    this.data = samples.length ? series(samples, since, until) : undefined;
    if (!this.data) { this.drop(); this.id = undefined; return; }
    if (this.plot && this.id === id) { this.plot.setData(this.data); this.rest(); return; }
    this.id = id;
    this.rebuild();
  }

  // top is the total, unless that is so far above what is used that the line would lie on the axis.
  top() {
    const highest = (values) => values.reduce((a, b) => Math.max(a, b ?? 0), 1);
    const used = highest(this.data[1]), total = highest(this.data[2]);
    return used * 5 > total ? total * 1.04 : Math.max(used * 1.25, 4);
  }

  drop() { this.plot?.destroy(); this.plot = undefined; }

  rebuild() {
    this.drop();
    if (!this.data || !this.at.clientWidth) return;
    const colour = colours();
    const axis = { stroke: colour.soft, grid: { stroke: colour.line, width: 1 }, ticks: { stroke: colour.line, width: 1, size: 6 }, font: '12px system-ui, "DejaVu Sans", sans-serif' };
    this.plot = new uPlot({
      width: this.at.clientWidth, height,
      padding: [8, 24, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { size: 8 } },
      hooks: { setCursor: [() => this.rest()] },
      scales: { y: { range: () => [0, this.top()] } },
      axes: [
        { ...axis, values: (u, splits) => times(splits), space: 68, size: 34 },
        { ...axis, values: (u, splits) => counts(splits), size: (u, values) => 18 + 7.5 * Math.max(2, ...(values ?? []).map((v) => v.length)) },
      ],
      series: [
        { label: 'Time', value: (u, v) => (v === null ? '' : when(v)) },
        { label: 'In use', stroke: colour.claim, fill: `${colour.claim}30`, width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, value: (u, v, s, i) => (v === null ? '–' : `${number(v)} (${percent(v, u.data[2][i ?? u.data[2].length - 1])})`) },
        { label: 'Total', stroke: colour.soft, dash: [5, 4], width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, value: (u, v) => (v === null ? '–' : number(v)) },
      ],
    }, this.data, this.at);
    this.rest();
  }

  fit() {
    if (!this.plot) this.rebuild();
    else if (this.at.clientWidth && this.at.clientWidth !== this.plot.width) this.plot.setSize({ width: this.at.clientWidth, height });
  }

  // rest has the legend say what is now, while the cursor is nowhere.
  rest() {
    if (!this.plot || this.plot.cursor.idx !== null && this.plot.cursor.left >= 0) return;
    this.plot.setLegend({ idx: this.data[0].length - 1 }, false);
  }

  point(i) {
    if (!this.plot) return;
    this.cursor = i;
    if (i < 0) { this.plot.setCursor({ left: -10, top: -10 }); return; }
    const [times, used, total] = this.data;
    this.plot.setCursor({ left: this.plot.valToPos(times[i], 'x'), top: this.plot.valToPos(used[i] ?? 0, 'y') });
    this.tell(`${when(times[i])}: ${used[i] === null ? 'not known' : `${number(used[i])} of ${number(total[i])} in use`}`);
  }

  key(e) {
    if (!this.plot) return;
    const last = this.data[0].length - 1, step = Math.max(1, Math.round(last / 48)), at = this.cursor >= 0 ? this.cursor : last;
    const to = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: last }[e.key];
    if (to !== undefined) this.point(Math.min(Math.max(to, 0), last));
    else if (e.key === 'Escape') this.point(-1);
    else return;
    e.preventDefault();
  }
}

// summary says in words what the chart shows.
export function summary(samples, { since, until }) {
  if (!samples.length) return 'No sample yet: the manager takes one a minute.';
  let peak = 0;
  for (let i = 1; i < samples.length; i += 3) peak = Math.max(peak, samples[i]);
  return `Peak of the last ${span(until - since)}: ${number(peak)} of ${number(samples[samples.length - 1])}.`;
}
