// What the page shows comes from here. An answer that has not changed since is undefined.

const tags = new Map();
let token = sessionStorage.getItem('token') ?? '';

export class Refused extends Error {}

export function useToken(text) {
  token = text.trim();
  sessionStorage.setItem('token', token);
  tags.clear();
}

// changed asks, and returns nothing where the answer is the one that was given last.
export const changed = (name, parameters) => ask(name, parameters, true);

// get asks.
export const get = (name, parameters) => ask(name, parameters, false);

// forget has the next answer count as changed.
export const forget = (name) => { for (const url of tags.keys()) if (url.startsWith(`api/${name}?`)) tags.delete(url); };

async function ask(name, parameters, cached) {
  const url = `api/${name}?${new URLSearchParams(parameters)}`;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (cached && tags.has(url)) headers['If-None-Match'] = tags.get(url);
  const answer = await fetch(url, { headers, cache: 'no-store', signal: AbortSignal.timeout(20000) });
  if (answer.status === 304) return undefined;
  if (answer.status === 401 && !token) throw new Refused('');
  if (answer.status === 401 || answer.status === 403) throw new Refused(answer.status === 401 ? 'The manager does not accept this token. Paste another one.' : 'The user of this token may not read the pools. An administrator can bind the role butler-ipam-system-page-reader to it.');
  const what = await answer.json().catch(() => ({ error: `the manager answered with status ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(what.error), { code: answer.status });
  if (cached) tags.set(url, answer.headers.get('ETag'));
  return what;
}
