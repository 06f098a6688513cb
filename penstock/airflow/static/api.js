// The API of the page. Every failure becomes a Failure with a kind.
const BASE = new URL("../../api/", import.meta.url);
const TIMEOUT_MS = 8000;
// The code of a release is checked first; a replay waits for the store.
const RELEASE_MS = 240000;
const ACTION_MS = { replay: 240000 };
// The server may have to read the declarations in a process, for which it waits as long.
const DECLARED_MS = 60000;
// A process with a JVM does it.
const JVM_MS = 240000;

export class Failure extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind; // control | server | signed-out | forbidden | refused
  }
}

const call = async (path, { timeout = TIMEOUT_MS, ...options } = {}) => {
  let answer;
  try {
    answer = await fetch(new URL(path, BASE), {
      cache: "no-store",
      credentials: "same-origin",
      signal: AbortSignal.timeout(timeout),
      ...options,
    });
  } catch {
    throw new Failure("server", "Airflow's API server does not answer.");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body) return body;
  const detail = typeof body?.detail === "string" ? body.detail : `The server answered ${answer.status}.`;
  if (answer.status === 503 && body?.code === "control_away") throw new Failure("control", detail);
  if (answer.status === 401) throw new Failure("signed-out", "You are signed out.");
  if (answer.status === 403) throw new Failure("forbidden", detail);
  throw new Failure(answer.status >= 500 ? "server" : "refused", detail);
};

export const overview = () => call("everything");
export const history = () => call("history?all=1");
export const streamHistory = (stream, span) => call(`history?${named({ stream, span })}`);
export const catalog = () => call("catalog", { timeout: DECLARED_MS });
const named = (values) => new URLSearchParams(values).toString();
export const letters = (stream, kind) => call(`letters?${named({ stream, kind })}`, { timeout: 30000 });
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
