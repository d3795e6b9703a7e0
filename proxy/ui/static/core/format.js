// Numbers and times for people.
const LOCALE = undefined;
const whole = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(LOCALE, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const day = new Intl.DateTimeFormat(LOCALE, { month: "short", day: "numeric" });
const full = new Intl.DateTimeFormat(LOCALE, { dateStyle: "medium", timeStyle: "long" });

export const NONE = "–";

/** Seconds as `84 ms`, `1.42 s`, `2 min 5 s`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const ms = seconds * 1000;
  if (ms < 10) return `${ms < 0.05 ? 0 : ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (seconds < 99.5) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export const ms = (value) => (value === null || value === undefined ? NONE : duration(value / 1000));
export const number = (value) => (value === null || value === undefined ? NONE : whole.format(value));

/** `1,204`, `18.2k`, `3.1M`. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 10_000) return whole.format(value);
  return value < 999_500 ? `${(value / 1000).toFixed(value < 99_950 ? 1 : 0)}k` : `${(value / 1e6).toFixed(1)}M`;
}

let currency = "";

/** The name of the currency of all costs, as it is configured. */
export const setCurrency = (name) => (currency = name ?? "");

/** A cost in the operator's currency, with as many digits as it needs. */
export function cost(value) {
  if (value === null || value === undefined) return NONE;
  const digits = value === 0 || value >= 100 ? 0 : value >= 1 ? 2 : value >= 0.001 ? 4 : 6;
  const fraction = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  try {
    const style = { style: "currency", currency, currencyDisplay: "narrowSymbol" };
    return new Intl.NumberFormat(LOCALE, { ...style, ...fraction }).format(value);
  } catch {
    // Not a code of ISO 4217: "credits".
    return `${new Intl.NumberFormat(LOCALE, fraction).format(value)} ${currency}`.trim();
  }
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 1000) return `${value} B`;
  return value < 1e6 ? `${(value / 1000).toFixed(1)} kB` : `${(value / 1e6).toFixed(1)} MB`;
}

export const time = (seconds) => (seconds ? clock.format(seconds * 1000) : NONE);
export const moment = (seconds) => (seconds ? full.format(seconds * 1000) : NONE);

/** The day, with its year if that is another one. */
export function date(seconds) {
  if (!seconds) return NONE;
  const that = new Date(seconds * 1000);
  const text = day.format(that);
  return that.getFullYear() === new Date().getFullYear() ? text : `${text} ${that.getFullYear()}`;
}

/** Today as a time, other days with their date. */
export function when(seconds) {
  if (!seconds) return NONE;
  const that = new Date(seconds * 1000);
  return that.toDateString() === new Date().toDateString()
    ? clock.format(that)
    : `${day.format(that)}, ${clock.format(that).slice(0, 5)}`;
}

/** `3 min ago`. */
export function ago(seconds, now = Date.now() / 1000) {
  const past = Math.max(0, now - seconds);
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  return past < 86400 ? `${Math.floor(past / 3600)} h ago` : `${Math.floor(past / 86400)} d ago`;
}

export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

/** A run's id, short. */
export const shortId = (id) => id.replace(/^run_/, "").slice(0, 8);
