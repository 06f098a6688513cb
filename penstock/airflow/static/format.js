// Numbers and times as short texts of constant width. A missing value is a dash.
export const DASH = "–";

const compact = (value, units, base) => {
  let n = Math.abs(value);
  let i = 0;
  while (n >= base * 0.9995 && i < units.length - 1) {
    n /= base;
    i += 1;
  }
  const digits = i === 0 ? (n < 10 && n % 1 ? 1 : 0) : n < 9.995 ? 2 : n < 99.95 ? 1 : 0;
  return (value < 0 ? "-" : "") + n.toFixed(digits) + units[i];
};

export const count = (value) => (value == null ? DASH : compact(value, ["", "k", "M", "G", "T"], 1000));
export const bytes = (value) => (value == null ? DASH : compact(value, [" B", " kB", " MB", " GB", " TB"], 1000));
export const exact = (value) => (value == null ? DASH : value.toLocaleString("en-US"));

// 850 ms, 4.2 s, 37 s, 4m 10s, 3h 05m, 2d 1h
export const span = (ms) => {
  if (ms == null) return DASH;
  if (ms < 0) return `-${span(-ms)}`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1).replace(".0", "")} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${String(s % 60).padStart(2, "0")}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor((s % 86400) / 3600)}h`;
};

// Whole seconds, for ages that are updated every few seconds.
export const age = (ms) => (ms == null ? DASH : ms > -1000 && ms < 1000 ? "0 s" : span(Math.trunc(ms / 1000) * 1000));

const two = (n) => String(n).padStart(2, "0");

export const clock = (ms) => {
  const d = new Date(ms);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
};

export const date = (ms) => {
  const d = new Date(ms);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
};

// A producer may write any timestamp. length: of the text before the zone, 23 with milliseconds.
export const utc = (ms, length = 19) => {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? `${ms}` : `${at.toISOString().slice(0, length).replace("T", " ")} UTC`;
};
export const moment = (ms, now) => (date(ms) === date(now) ? clock(ms) : `${date(ms)} ${clock(ms)}`);

// The error of a stream that runs again is past.
export const failed = ({ state, error, error_age_ms: ago }) =>
  error ? `${["running", "idle"].includes(state) ? "past" : "last"} error${ago == null ? "" : `, ${age(ago)} ago`}` : "";

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
