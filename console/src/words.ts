// Numbers and times as people say them: "0.4 s behind", "2 min 31 s", "1,284". Times are shown in UTC.

/** A whole number that may have travelled as text, because it can be greater than 2^53. */
export type Whole = number | string;

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

export function count(value: Whole): string {
  if (typeof value === "number") return grouped.format(value);
  return /^-?\d+$/.test(value) ? grouped.format(BigInt(value)) : value;
}

export function counted(value: Whole, one: string, many = `${one}s`): string {
  return `${count(value)} ${Number(value) === 1 ? one : many}`;
}

/** The number of a rate, without its unit. */
export function rate(perSecond: number): string {
  if (perSecond === 0) return "0";
  if (perSecond >= 100) return grouped.format(perSecond);
  return perSecond < 0.05 ? "< 0.1" : oneDigit.format(perSecond);
}

export function span(seconds: number): string {
  if (seconds < 0) return `-${span(-seconds)}`;
  if (seconds < 0.0995) return seconds === 0 ? "0 s" : "0.1 s";
  if (seconds < 59.95) return `${oneDigit.format(seconds)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
}

export function milliseconds(ms: number): string {
  return ms < 1000 ? `${grouped.format(ms)} ms` : span(ms / 1000);
}

export function size(bytes: Whole): string {
  let left = Number(bytes);
  for (const unit of ["bytes", "KiB", "MiB", "GiB", "TiB"]) {
    if (left < 1024 || unit === "TiB") return `${unit === "bytes" || left >= 100 ? grouped.format(left) : oneDigit.format(left)} ${unit}`;
    left /= 1024;
  }
  return "";
}

/** A time of the API, as milliseconds since 1970; NaN if it is none. */
export function instant(time: string | null | undefined): number {
  return time == null ? NaN : Date.parse(time);
}

const pad = (value: number, digits = 2) => String(value).padStart(digits, "0");

/** 14:03:27, with tenths if asked for. */
export function clock(at: number, digits: 0 | 1 | 3 = 0): string {
  const time = new Date(at);
  if (Number.isNaN(time.getTime())) return "no time";
  const whole = `${pad(time.getUTCHours())}:${pad(time.getUTCMinutes())}:${pad(time.getUTCSeconds())}`;
  return digits ? `${whole}.${pad(time.getUTCMilliseconds(), 3).slice(0, digits)}` : whole;
}

export function date(at: number): string {
  const time = new Date(at);
  return Number.isNaN(time.getTime()) ? "no date" : time.toISOString().slice(0, 10);
}

/** The time of day if it is of the last day, else with its date. */
export function moment(at: number, now: number, digits: 0 | 1 | 3 = 0): string {
  return Math.abs(now - at) < 43_200_000 ? clock(at, digits) : `${date(at)} ${clock(at, digits)}`;
}

export function ago(at: number, now: number): string {
  return Number.isNaN(at) ? "never" : `${span(Math.max(0, (now - at) / 1000))} ago`;
}

export function listed(names: readonly string[], most = 3): string {
  return names.length <= most ? names.join(", ") : `${names.slice(0, most).join(", ")} and ${names.length - most} more`;
}
