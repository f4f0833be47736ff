// Times to coordinates, and ticks that people would choose.

export interface Scale {
  (at: number): number;
  first: number;
  last: number;
  /** The time at a coordinate. */
  at(place: number): number;
}

export function scale(first: number, last: number, begin: number, end: number): Scale {
  const wide = last - first || 1;
  const map = (at: number) => begin + ((at - first) / wide) * (end - begin);
  return Object.assign(map, { first, last, at: (place: number) => first + ((place - begin) / (end - begin)) * wide });
}

// In seconds.
const STEPS = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];

export function ticks(first: number, last: number, most: number): { step: number; at: number[] } {
  const seconds = (last - first) / 1000;
  const step = 1000 * (STEPS.find((candidate) => seconds / candidate <= most) ?? Math.max(31536000, Math.ceil(seconds / most)));
  const at: number[] = [];
  for (let tick = Math.ceil(first / step) * step; tick <= last; tick += step) at.push(tick);
  return { step, at };
}

export function tickText(at: number, step: number): string {
  const text = new Date(at).toISOString();
  if (step >= 86_400_000) return text.slice(5, 10);
  if (step >= 60_000) return text.slice(11, 16);
  return step >= 1000 ? text.slice(11, 19) : text.slice(14, 21);
}
