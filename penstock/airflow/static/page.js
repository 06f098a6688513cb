// Fetches the data of the page and shows it.
import * as api from "./api.js";
import { BackfillTable } from "./backfills.js";
import { CaptureTable } from "./captures.js";
import { Catalog } from "./catalog.js";
import { spark } from "./charts.js";
import { $, attr, h, marked, text, tileIn } from "./dom.js";
import { FaultList } from "./faults.js";
import * as f from "./format.js";
import { Panels } from "./panels.js";
import { ReplacementTable } from "./replacements.js";
import { SinkTable } from "./sinks.js";
import { StreamTable } from "./streams.js";

const EVERY_MS = 3000;
const HISTORY_EVERY_MS = 15000;
const CATALOG_EVERY_MS = 60000;
const OLD_MS = 12000;
const RECENT = 20; // steps of the history, ten minutes

let data = null;
let fetchedAt = 0; // performance.now() of the last successful answer
let historyAt = -Infinity;
let failure = null;
let timer = null;
let busy = false;

// Totals

const tile = (name, title) => tileIn($("totals"), name, title);
const tiles = {
  streams: tile("Streams", "Streams with the desired state on that run or are idle"),
  rows: tile("Rows/s", "Over all streams with current metrics"),
  lag: tile("Lag", "Records that are not read yet, over all streams with current metrics"),
  watermark: tile("Oldest watermark", "The greatest watermark age of all streams with current metrics, without the declared grace"),
  state: tile("State", "Bytes of state of all streams with current metrics"),
  late: tile("Late", "Rows that arrived after their window was closed, since the first start"),
  dead: tile("Dead-lettered", "Records that could not be processed, since the first start"),
  restarts: tile("Driver restarts", "Over all apps"),
};
const SPARK = { width: 110, height: 20 };
const sum = (values) => values.reduce((a, b) => a + b, 0);
const totalSparks = [
  ["rows_per_s", spark(tiles.rows.note, SPARK), sum],
  ["lag", spark(tiles.lag.note, SPARK), sum],
  ["watermark_age_ms", spark(tiles.watermark.note, SPARK), (values) => Math.max(0, ...values)],
  ["state_bytes", spark(tiles.state.note, SPARK), sum],
];

const showTotals = ({ totals, freshness, apps }) => {
  const stale = freshness.old === "all";
  text(tiles.streams.value, `${totals.healthy} of ${totals.wanted}`);
  const tally = {};
  for (const { state } of apps.flatMap((app) => app.streams)) tally[state] = (tally[state] ?? 0) + 1;
  const others = Object.entries(tally).filter(([state]) => state !== "running" && state !== "idle");
  const note = others.map(([state, n]) => `${n} ${state}`).join(", ") || "all running";
  text(tiles.streams.note, note);
  attr(tiles.streams.note, "title", note);
  attr(tiles.streams.value, "data-bad", Boolean(tally.failing || tally.blocked || tally.hung || tally.down));
  text(tiles.rows.value, stale ? f.DASH : f.count(totals.rows_per_s));
  // Streams with unknown lag may add to it.
  const more = totals.lag_unknown && totals.lag != null;
  text(tiles.lag.value, stale ? f.DASH : (more ? "≥ " : "") + f.count(totals.lag));
  attr(tiles.lag.value, "title", totals.lag_unknown ? `unknown of ${f.plural(totals.lag_unknown, "stream")}` : null);
  const current = apps.flatMap((app) => app.streams).filter((s) => s.desired === "on" && !s.stale && s.watermark_age_ms != null);
  const ages = current.map((s) => s.watermark_age_ms - (streams.behind.get(s.name) ?? 0));
  text(tiles.watermark.value, f.age(ages.length ? Math.max(...ages) : null));
  text(tiles.state.value, stale ? f.DASH : f.bytes(totals.state_bytes));
  for (const key of ["late", "dead", "restarts"]) {
    text(tiles[key].value, f.count(totals[key]));
    attr(tiles[key].value, "title", f.exact(totals[key]));
  }
  text(tiles.restarts.note, `and ${f.count(sum(apps.flatMap((app) => app.streams.map((s) => s.restarts))))} of queries`);
};

const drawTotals = ({ t, streams: series }) => {
  const declared = (key, name) => (key === "watermark_age_ms" ? (streams.behind.get(name) ?? 0) : 0);
  const every = (key) =>
    Object.entries(series).map(([name, values]) => values[key].map((value) => (value == null ? null : value - declared(key, name))));
  for (const [key, chart, join] of totalSparks) {
    const all = every(key);
    const joined = t.map((_, i) => {
      const values = all.map((series) => series[i]).filter((value) => value != null);
      return values.length ? join(values) : null;
    });
    chart.setData([t, joined]);
  }
  for (const key of ["late", "dead"]) {
    const rise = sum(every(key).flat().filter((value) => value != null));
    text(tiles[key].note, `${rise ? f.count(rise) : "none"} in the last hour`);
    attr(tiles[key].value, "data-warn", every(key).some((values) => values.slice(-RECENT).some((value) => value > 0)));
  }
};

// Actions and heartbeats

const table = (head, rows, empty) =>
  rows.length
    ? h("table", { class: "list" }, h("thead", {}, h("tr", {}, ...head.map((c) => h("th", { scope: "col" }, c)))), h("tbody", {}, ...rows))
    : h("p", { class: "empty" }, empty);

const keys = {};
const replace = (id, key, make) => {
  if (keys[id] === key) return; // unchanged: keep selections and the scroll position
  keys[id] = key;
  $(id).replaceChildren(make());
};

// The name of a supervisor is the long key of a task instance.
const who = ({ actor, source }) =>
  source === "supervisor"
    ? h("td", { class: "who muted", title: actor }, source)
    : h("td", { class: "who" }, actor, h("span", { class: "muted" }, ` ${source}`));

const showLists = ({ actions, beats, now }) => {
  replace("actions", JSON.stringify(actions.map((a) => a.id)), () =>
    table(
      ["When", "Who", "What", "Note"],
      actions.map((a) =>
        h(
          "tr",
          {},
          h("td", { class: "when", title: new Date(a.at).toISOString() }, f.moment(a.at, now)),
          who(a),
          h("td", { class: "what" }, h("b", {}, a.verb), ` ${a.target}`),
          h("td", { class: "note" }, a.detail ?? ""),
        ),
      ),
      "There are no actions yet.",
    ),
  );
  replace("beats", JSON.stringify(beats.map((b) => [b.topic, b.at, Math.floor((b.age_ms ?? 0) / 1000), b.held, b.held_at])), () =>
    table(
      ["Topic", "Last beat", "Age", "Partitions", "Held"],
      beats.map((b) =>
        h(
          "tr",
          {},
          h("td", { class: "what" }, b.topic),
          h("td", { class: "when", title: `sent by ${b.sender}` }, b.at ? f.moment(b.at, now) : f.DASH),
          h("td", { class: "n" }, b.at ? f.age(b.age_ms) : f.DASH),
          h("td", { class: "n" }, f.exact(b.partitions)),
          h("td", { class: "note" }, b.held ? `${b.held_at ? `held at ${f.moment(b.held_at, now)}` : "held"}: ${b.held}` : ""),
        ),
      ),
      "No heartbeat has been sent yet.",
    ),
  );
};

const showStates = ({ states, remedies }) =>
  replace("states", JSON.stringify([states, remedies]), () => {
    const all = document.createDocumentFragment();
    for (const [state, meaning] of Object.entries(states)) {
      all.append(h("dt", {}, h("span", { class: "pill", "data-state": state }, state)), h("dd", {}, meaning, ...(remedies[state] ? [" What to do: ", ...marked(remedies[state]), /[.?]$/.test(remedies[state]) ? "" : "."] : [])));
    }
    return all;
  });

// Banner

const TITLES = {
  control: "The control database does not answer",
  server: "Airflow's API server does not answer",
  "signed-out": "You are signed out",
  forbidden: "You may not see this page",
  refused: "The page could not be updated",
};
const HELP = {
  server: "Streams continue. This page tries again every few seconds.",
  "signed-out": "Reload Airflow to sign in again.",
};

const ageOfData = () => performance.now() - fetchedAt;

const showBanner = () => {
  const stale = data !== null && ageOfData() > OLD_MS;
  let level = "";
  let title = "";
  let body = "";
  if (failure) {
    level = "bad";
    title = TITLES[failure.kind] ?? TITLES.refused;
    body = HELP[failure.kind] ?? failure.message;
  } else if (stale) {
    level = "bad";
    title = "This page's data is old";
    body = "It is being updated.";
  } else if (data && data.freshness.title) {
    level = data.freshness.old === "all" || data.freshness.down.length ? "bad" : "warn";
    title = data.freshness.title;
    body = data.freshness.message;
  }
  const banner = $("banner");
  attr(banner, "data-level", level || null);
  // The live region is rewritten only when its subject changes, so that screen readers do not repeat a changing age.
  const key = `${level}|${title}|${level === "bad" && failure ? body : ""}`;
  if (banner.dataset.key !== key) {
    banner.dataset.key = key;
    banner.replaceChildren(...(title ? [h("b", {}, title), h("span", { class: "body" }, body)] : []));
  } else if (title) {
    attr(banner, "aria-busy", true);
    text(banner.querySelector(".body"), body);
    attr(banner, "aria-busy", null);
  }
  attr($("main"), "data-old", (failure !== null && data !== null) || stale);
  const pulse = failure || stale ? "bad" : data?.freshness.old === "all" ? "bad" : data ? "good" : "";
  attr($("pulse"), "data-level", pulse);
  if (!data) text($("as-of"), failure ? "no data yet" : "loading");
  else {
    const behind = ageOfData();
    text($("as-of"), `as of ${f.clock(data.now)}` + (behind > EVERY_MS * 2 ? `, ${f.age(behind)} ago` : ""));
  }
};

// The loop

let toastTimer = null;
const acted = (message) => {
  text($("toast"), message);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => text($("toast"), ""), 6000);
  refresh();
};
const streams = new StreamTable({ acted });
const captures = new CaptureTable({ acted, guard: streams.guard });
const sinks = new SinkTable({ acted, guard: streams.guard });
const faults = new FaultList();
const backfills = new BackfillTable();
const replacements = new ReplacementTable({ acted, guard: streams.guard });
const panels = new Panels({ guard: streams.guard });

const show = () => {
  showTotals(data);
  faults.show(data);
  streams.show(data);
  captures.show(data);
  sinks.show(data);
  backfills.show(data);
  replacements.show(data);
  panels.allow(data.viewer);
  showLists(data);
  showStates(data);
  const { name, may_operate: mayOperate, may_release: mayRelease } = data.viewer;
  const missing = ["operate", "release"].filter((permission) => !data.viewer[`may_${permission}`]);
  const limit = mayOperate ? "no releases" : mayRelease ? "releases only" : "view only";
  text($("viewer"), missing.length ? `${name} · ${limit}` : name);
  const needed = missing.map((permission) => `to ${permission} needs the permission to trigger the DAG ${permission}_streams`);
  attr($("viewer"), "title", needed.join("; ").replace(/^./, (first) => first.toUpperCase()) || null);
  attr($("main"), "aria-busy", null);
};

const refresh = async () => {
  if (busy) return;
  busy = true;
  clearTimeout(timer);
  try {
    data = await api.overview();
    fetchedAt = performance.now();
    failure = null;
    show();
    if (performance.now() - historyAt > HISTORY_EVERY_MS) {
      const history = await api.history();
      historyAt = performance.now();
      streams.draw(history);
      drawTotals(history);
    }
  } catch (error) {
    if (!(error instanceof api.Failure)) throw error;
    failure = error;
  } finally {
    busy = false;
    showBanner();
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(refresh, EVERY_MS);
  }
};

// Declarations change seldom, and need no control database.
const catalog = new Catalog();
let catalogAt = -Infinity;

const refreshCatalog = async () => {
  if (document.hidden || performance.now() - catalogAt < CATALOG_EVERY_MS) return;
  catalogAt = performance.now();
  try {
    const declarations = await api.catalog();
    streams.behind = new Map(declarations.declared.map((one) => [one.name, one.behind_ms]));
    streams.replaceable = new Set(declarations.declared.filter((one) => ["stream", "sink"].includes(one.kind)).map((one) => one.name));
    faults.declare(declarations.declared);
    sinks.declared = declarations.declared.filter((one) => one.kind === "sink");
    backfills.declared = declarations.declared.filter((one) => one.kind === "backfill");
    catalog.show(declarations);
    panels.declare(declarations.panels);
    if (data) show();
  } catch (error) {
    if (!(error instanceof api.Failure)) throw error;
    catalog.fail(error);
  }
};

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else {
    refresh();
    refreshCatalog();
    panels.refresh();
  }
});
setInterval(() => {
  if (!document.hidden) showBanner();
  refreshCatalog();
  panels.refresh();
}, 1000);
refresh();
refreshCatalog();
