// The page's own API. Every failure becomes a Failure with a kind the page can explain.
const BASE = new URL("../../api/", import.meta.url);
const PATIENCE_MS = 8000;
// The code of a release is tried before it is accepted; a replay gives a store what it has to.
const PATIENT_MS = { release: 240000, replay: 240000 };
// The views have seconds to answer in, and others may be asking.
const VIEWS_MS = 20000;
// A process of its own reads the statement.
const EXPLAIN_MS = 240000;

export class Failure extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind; // control | server | signed-out | forbidden | refused
  }
}

const call = async (path, { patience = PATIENCE_MS, ...options } = {}) => {
  let answer;
  try {
    answer = await fetch(new URL(path, BASE), {
      cache: "no-store",
      credentials: "same-origin",
      signal: AbortSignal.timeout(patience),
      ...options,
    });
  } catch {
    throw new Failure("server", "Airflow's API server does not answer.");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body) return body;
  const said = typeof body?.detail === "string" ? body.detail : `The server answered ${answer.status}.`;
  if (answer.status === 503 && body?.code === "control_away") throw new Failure("control", said);
  if (answer.status === 401) throw new Failure("signed-out", "You are signed out.");
  if (answer.status === 403) throw new Failure("forbidden", said);
  throw new Failure(answer.status >= 500 ? "server" : "refused", said);
};

export const overview = () => call("overview");
export const history = () => call("history");
export const catalog = () => call("catalog");
const named = (values) => new URLSearchParams(values).toString();
export const letters = (stream, kind) => call(`letters?${named({ stream, kind })}`, { patience: 30000 });
export const panel = (name) => call(`panels/${name}`, { patience: VIEWS_MS });
export const panelCards = (name, key) => call(`panels/${name}/cards?${named({ key })}`, { patience: VIEWS_MS });
export const explain = (sink) => call(`explain?${named({ sink })}`, { patience: EXPLAIN_MS });
export const log = (app) => call(`log?${named({ app })}`);
export const act = (action) =>
  call("actions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(action),
    signal: AbortSignal.timeout(PATIENT_MS[action.verb] ?? PATIENCE_MS),
  });
