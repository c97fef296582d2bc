// Where the cells of a map are. Each range of the pool begins a row of its own, unless there are too many for that.

// mostParts is how many ranges have rows of their own.
const mostParts = 24;

export class Layout {
  // extents are the ranges of the pool, each with the number of its first address, base, and how many it has, n. What is
  // shown are n numbers from start on, so many of them a cell.
  constructor(extents, { start, n }, size) {
    this.size = size;
    this.cells = 0;
    let parts = extents.map((e) => ({ start: Math.max(e.base, start), end: Math.min(e.base + e.n, start + n) })).filter((p) => p.start < p.end);
    if (parts.length > mostParts) parts = [{ start, end: start + n }];
    this.parts = parts.map((p) => {
      const part = { ...p, cell: this.cells, cells: Math.ceil((p.end - p.start) / size) };
      this.cells += part.cells;
      return part;
    });
    this.arrange(1, 1);
  }

  // arrange puts the cells into rows of so many columns. From one label to the next there are so many rows, and each range
  // has a label.
  arrange(columns, every) {
    Object.assign(this, { columns, every, rows: 0 });
    for (const p of this.parts) {
      p.row = this.rows;
      p.high = Math.ceil(p.cells / columns);
      this.rows += p === this.parts[this.parts.length - 1] ? p.high : Math.ceil(p.high / every) * every;
    }
    return this.rows;
  }

  partOf(cell) { return this.parts.findLast((p) => p.cell <= cell); }

  // place is where a cell is.
  place(cell) {
    const p = this.partOf(cell), i = cell - p.cell;
    return { column: i % this.columns, row: p.row + Math.floor(i / this.columns) };
  }

  // cellAt is the cell at a place; -1: there is none.
  cellAt(column, row) {
    if (column < 0 || column >= this.columns || row < 0) return -1;
    const p = this.parts.findLast((q) => q.row <= row), i = p ? (row - p.row) * this.columns + column : -1;
    return i < 0 || i >= p.cells ? -1 : p.cell + i;
  }

  // labels are the rows that have one, with the number that it names.
  labels() {
    const out = [];
    for (const p of this.parts) for (let row = 0; row < p.high; row += this.every) out.push({ row: p.row + row, number: p.start + row * this.columns * this.size });
    return out;
  }

  // within are the numbers of a cell.
  within(cell) {
    const p = this.partOf(cell), first = p.start + (cell - p.cell) * this.size;
    return { first, last: Math.min(first + this.size, p.end) - 1 };
  }

  // cellOf is the cell of a number.
  cellOf(number) {
    const p = this.parts.findLast((q) => q.start <= number);
    return p.cell + Math.floor((number - p.start) / this.size);
  }

  // below is the cell that is so many rows below another one, above it where that is negative; the last or the first one
  // where there is none.
  below(cell, rows) {
    const { column, row } = this.place(cell);
    for (let to = row + rows; to >= 0 && to < this.rows; to += rows) {
      for (let left = column; left >= 0; left--) if (this.cellAt(left, to) >= 0) return this.cellAt(left, to);
    }
    return rows < 0 ? 0 : this.cells - 1;
  }
}
