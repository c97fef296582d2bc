// What addresses are used for: how it is said, and how it is painted. Colours are of page.css.

export const words = {
  free: 'free', claim: 'claim', loadbalancer: 'load balancer', nodes: 'nodes', carved: 'carved pool', pods: 'pod range', lease: 'lease', noclaim: 'address without a claim',
  conflict: 'held twice', preallocated: 'pre-allocated', resting: 'resting', held: 'held back', draining: 'draining', elsewhere: 'in another pool', reserved: 'reserved',
  gateway: 'gateway', waiting: 'waiting',
};

// inUse are the uses that mean that somebody has the address.
export const inUse = new Set(['claim', 'loadbalancer', 'nodes', 'carved', 'pods', 'lease', 'noclaim', 'conflict']);

// alarming are the uses that must not be.
export const alarming = new Set(['conflict', 'noclaim']);

// strokes tell the uses apart where colours do not.
const strokes = { resting: 'slash', carved: 'dot', draining: 'slash', held: 'backslash', conflict: 'cross', noclaim: 'cross', preallocated: 'dot', elsewhere: 'cross', reserved: 'slash', loadbalancer: 'line', pods: 'line', lease: 'dot' };

// colours reads the colours of the page as they are now, light or dark.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return new Proxy({}, { get: (known, name) => (known[name] ??= of(name)) });
}

// paint fills a cell.
export function paint(g, colour, use, x, y, width, height) {
  g.fillStyle = colour[use];
  g.fillRect(x, y, width, height);
  const stroke = strokes[use];
  if (!stroke || Math.min(width, height) < 7) return;
  g.strokeStyle = g.fillStyle = colour.card;
  g.lineWidth = 1.4;
  g.beginPath();
  const inset = 2, right = x + width - inset, bottom = y + height - inset;
  if (stroke === 'slash' || stroke === 'cross') { g.moveTo(x + inset, bottom); g.lineTo(right, y + inset); }
  if (stroke === 'backslash' || stroke === 'cross') { g.moveTo(x + inset, y + inset); g.lineTo(right, bottom); }
  if (stroke === 'line') { g.moveTo(x + inset, y + height / 2); g.lineTo(right, y + height / 2); }
  if (stroke === 'dot') { g.arc(x + width / 2, y + height / 2, 1.6, 0, 7); g.fill(); } else g.stroke();
}
