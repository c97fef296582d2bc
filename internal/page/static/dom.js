// Elements are made here and nowhere else. Text goes in as text: names are the tenants' and never markup.

export const byId = (id) => document.getElementById(id);

const focusable = 'a, button, input, summary, [tabindex]';

// put shows new content in an element. What had the focus, or was scrolled, and is still there keeps it.
export function put(id, ...content) {
  const next = h('div', {}, ...content), at = byId(id);
  const same = !next.querySelector('canvas, a, button') && next.childNodes.length === at.childNodes.length && [...next.childNodes].every((node, i) => node.isEqualNode(at.childNodes[i]));
  if (same) return;
  const focused = [...at.querySelectorAll(focusable)].indexOf(document.activeElement);
  const scrolled = at.querySelector('.scroll')?.scrollTop ?? 0;
  at.replaceChildren(...next.childNodes);
  if (scrolled) at.querySelector('.scroll')?.scrollTo({ top: scrolled });
  if (focused >= 0) at.querySelectorAll(focusable)[focused]?.focus({ preventScroll: true });
}

// h makes an element: its name, its attributes, its children, which are elements or texts.
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// s makes an element of a picture.
export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'onclick') {
      element.addEventListener('click', value);
    } else if (value !== undefined && value !== false) {
      element.setAttribute(key, value);
    }
  }
  element.append(...children.filter((child) => child !== undefined && child !== '')); // a string becomes a text node
  return element;
}

// number is n with commas; the manager counts up to 2^63, a browser exactly up to 2^53.
export function number(n) {
  if (n >= 2 ** 63) return 'over 9 × 10¹⁸';
  if (n < 1e12) return n.toLocaleString('en-US');
  const power = Math.floor(Math.log10(n));
  return `${(n / 10 ** power).toFixed(1)} × 10${[...String(power)].map((d) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[d]).join('')}`;
}

// compact is n in few letters: 12K, 131M, 2.5e15.
export function compact(n) {
  return n < 1e4 ? n.toLocaleString('en-US') : n < 1e15 ? new Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 1 }).format(n) : n.toExponential(1).replace('.0e', 'e').replace('+', '');
}

// percent is 100 only where nothing is left, and 0 only where nothing is used.
export function percent(used, total) {
  if (!total) return '–';
  const p = 100 * used / total;
  if (p > 0 && p < 0.1) return '<0.1 %';
  if (p < 100 && p > 99.9) return '99.9 %';
  return `${p < 10 || (p > 99 && p < 100) ? p.toFixed(1).replace(/\.0$/, '') : Math.round(p)} %`;
}

export function when(seconds) {
  if (!seconds) return '';
  const t = new Date(seconds * 1000);
  const two = (n) => String(n).padStart(2, '0');
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}`;
}

// span is a time in the unit that suits it.
export function span(seconds) {
  const past = Math.max(0, seconds);
  if (past < 90) return `${Math.round(past)} s`;
  if (past < 5400) return `${Math.round(past / 60)} min`;
  if (past < 172800) return `${Math.round(past / 3600)} h`;
  return `${Math.round(past / 86400)} days`;
}

export const ago = (seconds) => span(Date.now() / 1000 - seconds);
