// Usage over time in even steps, of the reported samples: time, used, total, time, and so on. A sample holds until
// the next.

const most = 720;

// series returns times, used and total, at least one minute apart.
export function series(samples, since, until) {
  const step = Math.max(60, Math.ceil((until - since) / most / 60) * 60);
  const times = [], used = [], total = [];
  let i = -3;
  const add = (t) => {
    while (i + 3 < samples.length && samples[i + 3] <= t) i += 3;
    times.push(t);
    used.push(i < 0 ? null : samples[i + 1]);
    total.push(i < 0 ? null : samples[i + 2]);
  };
  for (let t = Math.max(since, Math.min(samples[0], until)); t < until; t += step) add(t);
  add(until);
  return [times, used, total];
}

// hourly picks what a table shows: the latest first, one an hour.
export function hourly([times, used, total]) {
  const out = [];
  for (let i = times.length - 1, due = Infinity; i >= 0; i--) {
    if (used[i] === null || times[i] > due) continue;
    out.push({ at: times[i], used: used[i], total: total[i] });
    due = Math.floor((times[i] - 1) / 3600) * 3600;
  }
  return out;
}
