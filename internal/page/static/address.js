// Addresses and numbers. A map counts the addresses of a pool, or its prefixes, from 0 through all its extents.

// parse reads an address as a number and its length in bits.
export function parse(text) {
  if (!text.includes(':')) {
    return { value: text.split('.').reduce((n, part) => n * 256n + BigInt(part), 0n), bits: 32 };
  }
  const [head, tail] = text.split('::');
  const groups = (side) => (side ? side.split(':') : []);
  const left = groups(head), right = groups(tail);
  const middle = tail === undefined ? [] : Array(8 - left.length - right.length).fill('0');
  return { value: [...left, ...middle, ...right].reduce((n, group) => n * 65536n + BigInt(`0x${group}`), 0n), bits: 128 };
}

// format writes an address the usual way (RFC 5952).
export function format(value, bits) {
  if (bits === 32) return [24n, 16n, 8n, 0n].map((shift) => (value >> shift) & 255n).join('.');
  const groups = [];
  for (let shift = 112n; shift >= 0n; shift -= 16n) groups.push(((value >> shift) & 65535n).toString(16));
  let best = { start: 0, length: 1 };
  for (let i = 0, zeros = 0; i < 8; i++) {
    zeros = groups[i] === '0' ? zeros + 1 : 0;
    if (zeros > best.length) best = { start: i - zeros + 1, length: zeros };
  }
  if (best.length < 2) return groups.join(':');
  return `${groups.slice(0, best.start).join(':')}::${groups.slice(best.start + best.length).join(':')}`;
}

// Row is a pool's addresses in a row.
export class Row {
  constructor(extents, unit) {
    this.size = 0;
    this.extents = extents.map(([from, to]) => {
      const first = parse(from), last = parse(to), host = BigInt(Math.max(0, first.bits - unit));
      const extent = { first: first.value, bits: first.bits, host, base: this.size, n: Number(((last.value - first.value) >> host) + 1n) };
      this.size += extent.n;
      return extent;
    });
  }

  extentOf(i) {
    let low = 0, high = this.extents.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.extents[middle].base <= i) low = middle; else high = middle - 1;
    }
    return this.extents[low];
  }

  // first and last address of number i.
  first(i) { const e = this.extentOf(i); return format(e.first + (BigInt(i - e.base) << e.host), e.bits); }
  last(i) { const e = this.extentOf(i); return format(e.first + (BigInt(i - e.base + 1) << e.host) - 1n, e.bits); }

  // name of number i: an address, or a prefix.
  name(i) { const e = this.extentOf(i); return this.first(i) + (e.host > 0n ? `/${e.bits - Number(e.host)}` : ''); }

  // span names the numbers from i to j: a prefix if they are one.
  span(i, j) {
    if (i === j) return this.name(i);
    const e = this.extentOf(i);
    const size = BigInt(j - i + 1) << e.host, start = e.first + (BigInt(i - e.base) << e.host);
    const length = size.toString(2).length - 1;
    if (j < e.base + e.n && size === 1n << BigInt(length) && start % size === 0n) return `${this.first(i)}/${e.bits - length}`;
    return `${this.first(i)} – ${this.last(j)}`;
  }

  // numberOf an address; undefined: it is not among them.
  numberOf(text) {
    const { value, bits } = parse(text);
    for (const e of this.extents) {
      if (e.bits !== bits || value < e.first) continue;
      const i = Number((value - e.first) >> e.host);
      if (i < e.n) return e.base + i;
    }
    return undefined;
  }
}
