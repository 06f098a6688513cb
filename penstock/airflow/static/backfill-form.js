// Runs of a backfill in Airflow: the form that starts one, and those that wait in its queue.
import { exchange } from "./api.js";
import { openDialog } from "./dialog.js";
import { dagLink, h, text } from "./dom.js";

const API = new URL("../../../api/v2/", import.meta.url);
const TIMEOUT_MS = 15000;
const QUEUED = 100;
const DAY_MS = 86_400_000;

const airflow = async (path, options = {}) => {
  const [answer, body] = await exchange(new URL(path, API), { timeout: TIMEOUT_MS, ...options });
  if (answer.ok) return body;
  throw new Error(answer.status === 403 ? "You may not do this in Airflow." : typeof body?.detail === "string" ? body.detail : `Airflow answered ${answer.status}.`);
};

// Runs that Airflow has not started, by the name of their backfill, with what each waits for.
export const queuedRuns = async () => {
  const query = new URLSearchParams([["state", "queued"], ["state", "running"], ["dag_id_pattern", "backfill_%"], ["limit", QUEUED], ["order_by", "run_after"]]);
  const { dag_runs: runs } = await airflow(`dags/~/dagRuns?${query}`);
  const of = runs.filter(({ dag_id: dag }) => dag.startsWith("backfill_"));
  const dags = of.some(({ state }) => state === "queued") ? (await airflow("dags?dag_id_pattern=backfill_&limit=1000")).dags : [];
  const paused = new Set(dags.filter((dag) => dag.is_paused).map((dag) => dag.dag_id));
  const running = new Map(of.filter(({ state }) => state === "running").map((run) => [run.dag_id, run]));
  return of
    .filter(({ state }) => state === "queued")
    .map(({ dag_id: dag, dag_run_id: run, queued_at: at }) => ({
      name: dag.replace("backfill_", ""),
      run,
      at: at ? Date.parse(at) : null,
      why: paused.has(dag) ? "its DAG is paused" : running.has(dag) ? `for its run ${running.get(dag).dag_run_id}, which is running: a backfill has one at a time` : "for Airflow's scheduler to start it",
    }));
};

const midnight = (ms) => new Date(Math.floor(ms / DAY_MS) * DAY_MS).toISOString().slice(0, 16);

export const startBackfill = ({ name, writes }, acted) => {
  const input = (props) => h("input", { autocomplete: "off", ...props });
  const [begin, end] = [input({ type: "datetime-local", value: midnight(Date.now() - DAY_MS) }), input({ type: "datetime-local", value: midnight(Date.now()) })];
  const target = input({ type: "text", value: writes.find(({ kind }) => kind === "topic")?.name ?? "", placeholder: "as declared" });
  const check = (words) => {
    const box = h("input", { type: "checkbox" });
    return [box, h("label", { class: "check" }, box, ` ${words}`)];
  };
  const [dry, dryLabel] = check("Dry run: only report what would be written");
  const [unclosed, unclosedLabel] = check("Also read hours that are not closed");
  const [again, againLabel] = check("Write again what an earlier run has written");
  const field = (words, node) => h("label", {}, words, node);
  const failed = h("p", { role: "alert", class: "failed" });
  const start = h("button", { type: "submit" }, "Start");
  const utc = (local) => (local ? `${local.length === 16 ? `${local}:00` : local}Z` : null);
  const onsubmit = async (event) => {
    event.preventDefault();
    if (begin.value && end.value && end.value <= begin.value) {
      text(failed, "Not started: the interval is empty. To must be after From.");
      return;
    }
    start.disabled = true;
    text(failed, "");
    const conf = { begin: utc(begin.value), end: utc(end.value), ...(target.value && { target: target.value }), dry_run: dry.checked, unclosed: unclosed.checked, again: again.checked };
    try {
      const run = await airflow(`dags/backfill_${encodeURIComponent(name)}/dagRuns`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ logical_date: new Date().toISOString(), conf }),
      });
      start.closest("dialog").close();
      acted(`${name} is started as ${run.dag_run_id}.`);
    } catch (error) {
      text(failed, `Not started: ${error.message}`);
      start.disabled = false;
    }
  };
  const more = h("p", { class: "muted" }, "Source, rate and timestamps are in the form of ", dagLink(`backfill_${name}`, "its DAG", `The DAG of ${name}, in Airflow`), ".");
  openDialog({
    title: `Start ${name}`,
    about: "One interval of event time, in UTC; its end is not included. What an earlier run of the same interval has written is not written again.",
    make: () => [h("form", { class: "start", onsubmit }, field("From", begin), field("To", end), field("Target topic", target), dryLabel, unclosedLabel, againLabel, failed, h("div", { class: "buttons" }, start)), more],
  });
};
