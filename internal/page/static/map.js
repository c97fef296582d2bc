// The map: a cell is an address where there are at most 4096, or 1024 on a narrow screen; above that a cell is a block,
// painted by how much of it is used for what, and a click opens it.
import { Row } from './address.js';
import { Layout } from './layout.js';
import { Runs } from './runs.js';
import { colours, inUse, paint } from './uses.js';
import { number } from './dom.js';

const narrow = 560;
const font = '11px ui-monospace, "DejaVu Sans Mono", monospace';

// sizeOf is how many addresses a cell stands for, where there are most cells, so that its block fills a map of its own.
function sizeOf(n, most) {
  if (n <= most) return 1;
  let size = 256;
  while (n / size > most) size *= 2;
  return size;
}

export class AddressMap {
  // show is called with what the cursor is on; look with what is shown now.
  constructor(canvas, { show, look }) {
    Object.assign(this, { canvas, show, look, cursor: -1, most: 4096 });
    canvas.addEventListener('pointerdown', (e) => this.point(this.at(e), e));
    canvas.addEventListener('pointermove', (e) => this.point(this.at(e), e));
    canvas.addEventListener('pointerleave', (e) => { if (e.pointerType !== 'touch') this.point(-1); }); // a finger leaves when it is lifted
    document.addEventListener('pointerdown', (e) => { if (e.target !== canvas) this.point(-1); });
    canvas.addEventListener('click', (e) => this.enter(this.at(e)));
    canvas.addEventListener('keydown', (e) => this.key(e));
    canvas.addEventListener('blur', () => this.point(-1));
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
    new ResizeObserver(() => (this.measure() && this.row ? this.refresh() : this.draw())).observe(canvas.parentElement);
    this.measure();
  }

  // measure tells whether the number of cells that there is room for has changed.
  measure() {
    const width = this.canvas.parentElement.clientWidth, was = this.most;
    if (width) this.most = width < narrow ? 1024 : 4096;
    return this.most !== was;
  }

  // set gives the map another pool, or the same one as it is now: what is looked at stays.
  set(grid) {
    const same = this.id === grid.id && JSON.stringify(this.extents) === JSON.stringify(grid.extents);
    this.id = grid.id;
    this.uses = grid.uses;
    this.runs = new Runs(grid.runs ?? []);
    if (!same) {
      this.extents = grid.extents;
      this.row = new Row(grid.extents, grid.unit);
      this.levels = [{ start: 0, n: this.row.size }];
      this.cursor = -1;
    }
    this.refresh();
  }

  get level() { return this.levels[this.levels.length - 1]; }

  refresh() {
    const { start, n } = this.level;
    this.size = sizeOf(n, this.most);
    this.layout = new Layout(this.row.extents, { start, n }, this.size);
    this.cells = this.layout.cells;
    this.counts = new Float64Array(this.cells * this.uses.length);
    for (const p of this.layout.parts) this.counts.set(this.runs.counts(p.start, p.end, this.size, this.uses.length), p.cell * this.uses.length);
    this.draw();
    this.look(this.level);
  }

  // totals counts the uses of all that is shown.
  totals() {
    const out = Object.fromEntries(this.uses.map((use) => [use, 0]));
    for (let i = 0; i < this.counts.length; i++) out[this.uses[i % this.uses.length]] += this.counts[i];
    out.free = this.level.n - Object.values(out).reduce((a, b) => a + b, 0);
    return out;
  }

  shape() {
    const width = this.canvas.parentElement.clientWidth;
    if (width < narrow) {
      const columns = this.size > 1 && this.cells <= 64 ? 8 : this.cells <= 512 ? 16 : 32;
      const cell = Math.min(44, width / columns);
      const high = this.size > 1 ? Math.max(Math.min(cell, 28), 14) : cell;
      return { columns, label: 0, cell, high, rows: this.layout.arrange(columns, 1) };
    }
    let columns = this.cells <= 64 ? 16 : this.cells <= 512 ? 32 : this.cells <= 1024 ? 64 : 128;
    while (columns > 16 && width / columns < 6) columns /= 2;
    const label = this.label(columns);
    const cell = Math.min(26, (width - label) / columns), high = this.size > 1 ? Math.max(cell, 14) : cell;
    let every = 1; // rows from one label to the next
    while (every * high < 15) every *= 2;
    return { columns, label, cell, high, rows: this.layout.arrange(columns, every) };
  }

  // label is how much room the addresses beside the rows take.
  label(columns) {
    const g = this.canvas.getContext('2d'), ends = this.layout.parts.flatMap((p) => [p.start, p.start + Math.floor((p.cells - 1) / columns) * columns * this.size]);
    g.font = font;
    const wide = ends.map((number) => g.measureText(this.row.first(number)).width);
    return Math.min(160, Math.ceil(Math.max(0, ...wide)) + 14);
  }

  draw() {
    if (!this.row || !this.canvas.parentElement.clientWidth) return;
    const began = performance.now();
    const { columns, label, cell, high, rows } = this.form = this.shape();
    const scale = devicePixelRatio || 1, width = label + columns * cell, height = rows * high;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const g = this.canvas.getContext('2d'), colour = colours();
    g.scale(scale, scale);
    g.font = font;
    g.textBaseline = 'middle';
    const gap = cell > 9 ? 1.5 : cell > 5 ? 1 : 0.5;
    g.fillStyle = colour.soft;
    for (const { row, number } of label ? this.layout.labels() : []) g.fillText(this.row.first(number), 0, row * high + Math.max(7, high / 2), label - 8);
    for (const p of this.layout.parts) {
      for (let i = 0; i < p.cells; i++) {
        this.drawCell(g, colour, p.cell + i, label + (i % columns) * cell, (p.row + Math.floor(i / columns)) * high, cell - gap, high - gap);
      }
    }
    if (this.cursor >= 0) {
      const { column, row } = this.layout.place(this.cursor);
      g.strokeStyle = colour.ink;
      g.lineWidth = 2;
      g.strokeRect(label + column * cell - 1, row * high - 1, cell + 1, high + 1);
    }
    performance.measure('map', { start: began, end: performance.now() });
  }

  drawCell(g, colour, i, x, y, width, height) {
    const n = this.uses.length, { first, last } = this.layout.within(i), size = last - first + 1;
    g.fillStyle = colour.free;
    g.fillRect(x, y, width, height);
    let from = x;
    for (let use = 0; use < n; use++) {
      const share = this.counts[i * n + use] / size;
      if (!share) continue;
      // Whatever is there is seen, one address of thousands too.
      const wide = share === 1 ? width : Math.max(1.5, share * width);
      if (this.size === 1) paint(g, colour, this.uses[use], x, y, width, height);
      else { g.fillStyle = colour[this.uses[use]]; g.fillRect(Math.min(from, x + width - wide), y, wide, height); }
      from += wide;
    }
  }

  at(event) {
    const { label, cell, high } = this.form;
    return this.layout.cellAt(Math.floor((event.offsetX - label) / cell), Math.floor(event.offsetY / high));
  }

  point(cell, event) {
    if (cell === this.cursor) return;
    this.cursor = cell;
    this.draw();
    if (cell < 0) { this.show(undefined); return; }
    const { label, cell: wide, high } = this.form, { column, row } = this.layout.place(cell);
    const n = this.uses.length, { first, last } = this.layout.within(cell);
    const counts = {};
    let used = 0;
    for (let use = 0; use < n; use++) {
      const count = this.counts[cell * n + use];
      if (count) counts[this.uses[use]] = count;
      if (inUse.has(this.uses[use])) used += count;
    }
    this.show({
      name: this.row.span(first, last), first: this.row.first(first), last: this.row.last(last), n: last - first + 1, used, counts,
      x: label + column * wide + wide, y: row * high + high, byKey: !event,
    });
  }

  // enter looks into a block.
  enter(cell) {
    if (cell < 0 || this.size === 1) return;
    const { first, last } = this.layout.within(cell);
    this.levels.push({ start: first, n: last - first + 1 });
    this.point(-1);
    this.refresh();
  }

  // leave goes back to a level.
  leave(level) {
    this.levels.length = Math.max(1, level + 1);
    this.point(-1);
    this.refresh();
  }

  // find looks at an address. It tells whether it is there.
  find(address) {
    const i = address && this.row?.numberOf(address);
    if (i === undefined) return false;
    this.levels.length = 1;
    while (sizeOf(this.level.n, this.most) > 1) {
      const layout = new Layout(this.row.extents, this.level, sizeOf(this.level.n, this.most)), { first, last } = layout.within(layout.cellOf(i));
      this.levels.push({ start: first, n: last - first + 1 });
    }
    this.cursor = -1;
    this.refresh();
    this.point(this.layout.cellOf(i));
    return true;
  }

  // listed are the ranges of what is shown, by use, at most so many.
  listed(most) {
    const { start, n } = this.level, { spans, more } = this.runs.spans(start, start + n, most);
    return { more, ranges: spans.map(({ first, last, use }) => ({ range: this.row.span(first, last), n: last - first + 1, use: use < 0 ? 'free' : this.uses[use] })) };
  }

  // firstOf is the first address of what is shown that has a use.
  firstOf(use) {
    const { start, n } = this.level, i = this.runs.first.findIndex((first, r) => this.uses[this.runs.use[r]] === use && this.runs.end[r] > start && first < start + n);
    return i < 0 ? undefined : this.row.first(Math.max(this.runs.first[i], start));
  }

  names() {
    return this.levels.map(({ start, n }, i) => (i === 0 ? `all ${number(n)}` : this.row.span(start, start + n - 1)));
  }

  key(e) {
    const last = this.cells - 1, from = this.cursor;
    const to = {
      Home: () => 0, End: () => last, ArrowRight: () => from + 1, ArrowLeft: () => from - 1,
      ArrowDown: () => (from < 0 ? 0 : this.layout.below(from, 1)), ArrowUp: () => (from < 0 ? 0 : this.layout.below(from, -1)),
    }[e.key]?.();
    if (to !== undefined) this.point(Math.min(Math.max(to, 0), last));
    else if (e.key === 'Enter') this.enter(this.cursor);
    else if (e.key === 'Escape' || e.key === 'Backspace') this.leave(this.levels.length - 2);
    else return;
    e.preventDefault();
  }
}
