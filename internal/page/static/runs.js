// What a map is made of: runs of one use, and free space between them.

export class Runs {
  // flat has three numbers a run: the free ones before it, its length, its use.
  constructor(flat) {
    const n = flat.length / 3;
    this.first = new Float64Array(n);
    this.end = new Float64Array(n);
    this.use = new Uint8Array(n);
    for (let i = 0, next = 0; i < n; i++) {
      this.first[i] = next + flat[3 * i];
      next = this.end[i] = this.first[i] + flat[3 * i + 1];
      this.use[i] = flat[3 * i + 2];
    }
  }

  // from is the index of the first run that ends after number i.
  from(i) {
    let low = 0, high = this.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] > i) high = middle; else low = middle + 1;
    }
    return low;
  }

  // counts returns, for cells of so many numbers each from start on, before stop, how many each use has: uses numbers a cell.
  counts(start, stop, size, uses) {
    const out = new Float64Array(Math.ceil((stop - start) / size) * uses);
    for (let r = this.from(start); r < this.end.length && this.first[r] < stop; r++) {
      let i = Math.max(this.first[r], start);
      const end = Math.min(this.end[r], stop);
      while (i < end) {
        const cell = Math.floor((i - start) / size);
        const next = Math.min(end, start + (cell + 1) * size);
        out[cell * uses + this.use[r]] += next - i;
        i = next;
      }
    }
    return out;
  }

  // spans lists the runs from start to stop, the free ones among them, at most so many.
  spans(start, stop, most) {
    const out = [];
    let next = start;
    const add = (end, use) => { if (end > next) out.push({ first: next, last: end - 1, use }); next = Math.max(next, end); };
    for (let r = this.from(start); next < stop && out.length < most; r++) {
      if (r >= this.end.length || this.first[r] >= stop) { add(stop, -1); break; }
      add(this.first[r], -1);
      add(Math.min(this.end[r], stop), this.use[r]);
    }
    return { spans: out.slice(0, most), more: next < stop || out.length > most };
  }
}
