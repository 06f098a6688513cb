// The API of the page. Every failure becomes a Failure with a kind.
const BASE = new URL("../../api/", import.meta.url);
const TIMEOUT_MS = 8000;
// The code of a release is checked first; a replay waits for the store.
const RELEASE_MS = 240000;
const ACTION_MS = { replay: 240000, discard: 60000 };
// The server may have to read the declarations in a process, for which it waits as long.
const DECLARED_MS = 60000;
const CATALOG_MS = 60000;
// A process with a JVM does it.
const JVM_MS = 240000;

export class Failure extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind; // control | server | signed-out | forbidden | refused
  }
}

// The answer, and its JSON; null where it has none.
export const exchange = async (url, { timeout, ...options }) => {
  let answer;
  try {
    answer = await fetch(url, {
      cache: "no-store",
      credentials: "same-origin",
      signal: AbortSignal.timeout(timeout),
      ...options,
    });
  } catch {
    throw new Failure("server", "Airflow's API server does not answer.");
  }
  return [answer, await answer.json().catch(() => null)];
};

const call = async (path, options = {}) => {
  const [answer, body] = await exchange(new URL(path, BASE), { timeout: TIMEOUT_MS, ...options });
  if (answer.ok && body) return body;
  const detail = typeof body?.detail === "string" ? body.detail : `The server answered ${answer.status}.`;
  if (answer.status === 503 && body?.code === "control_away") throw new Failure("control", detail);
  if (answer.status === 401) throw new Failure("signed-out", "You are signed out.");
  if (answer.status === 403) throw new Failure("forbidden", detail);
  throw new Failure(answer.status >= 500 ? "server" : "refused", detail);
};

// Reads again what is older than some milliseconds; a failure is not kept.
export const kept = (read, ms = Infinity) => {
  let answer = null;
  let at = 0;
  return () => {
    if (answer === null || performance.now() - at > ms) {
      at = performance.now();
      answer = read().catch((error) => {
        answer = null;
        throw error;
      });
    }
    return answer;
  };
};

const named = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value != null)).toString();
// Of a view: its rows by the query of the address.
const rows = (path, query, options) => call([path, named(query)].filter(Boolean).join("?"), options);
export const texts = () => call("texts");
export const lags = () => call("lags");
export const overview = () => call("overview");
export const streams = ({ q, app, state, sort, page }) => rows("streams", { q, app, state, sort, page });
export const stream = (name) => call(`streams/${encodeURIComponent(name)}`);
export const source = (name) => call(`streams/${encodeURIComponent(name)}/source`, { timeout: DECLARED_MS });
export const captures = ({ q, page }) => rows("captures", { q, page });
export const sinks = ({ q, page }) => rows("sinks", { q, page });
export const backfills = ({ page }) => rows("backfills", { page });
export const replacements = ({ page }) => rows("replacements", { page });
export const archives = () => call("archives", { timeout: DECLARED_MS });
export const views = () => call("views", { timeout: DECLARED_MS });
export const activity = ({ q, actor, verb, before }) => rows("activity", { q, actor, verb, before });
export const deadLetters = ({ q, page }) => rows("dead-letters", { q, page });
export const reasons = (stream) => rows("dead-letters/reasons", { stream }, { timeout: 30000 });
export const totalHistory = () => call("history");
export const histories = (names) => call(`history?${new URLSearchParams(names.map((name) => ["names", name]))}`);
export const streamHistory = (stream, span) => call(`history?${named({ stream, span })}`);
// Declarations change seldom.
export const catalog = kept(() => call("catalog", { timeout: DECLARED_MS }), CATALOG_MS);
export const letters = (stream, kind) => call(`letters?${named({ stream, kind })}`, { timeout: 30000 });
export const records = (stream, topic, key) => call(`records?${named({ stream, topic, key })}`, { timeout: 30000 });
export const panel = (name) => call(`panels/${name}`, { timeout: DECLARED_MS });
export const panelCards = (name, key) => call(`panels/${name}/cards?${named({ key })}`, { timeout: DECLARED_MS });
export const explain = (sink) => call(`explain?${named({ sink })}`, { timeout: JVM_MS });
export const preview = (stream) => call(`preview?${named({ stream })}`, { timeout: JVM_MS });
export const releases = (app) => call(`releases?${named({ app })}`);
export const changes = (app, before, after) => call(`changes?${named({ app, before, after })}`, { timeout: 30000 });
export const differences = (replacement) => call(`differences?${named({ replacement })}`);
export const log = (app) => call(`log?${named({ app })}`);
export const changed = () => call("changed", { timeout: DECLARED_MS });
const post = (path, body, timeout) =>
  call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), timeout });
export const act = (action) => post("actions", action, ACTION_MS[action.verb] ?? TIMEOUT_MS);
export const replacement = (action) => post("replacements", action, RELEASE_MS);
export const release = (action) => post("releases", action, RELEASE_MS);
