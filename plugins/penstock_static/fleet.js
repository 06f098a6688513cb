// The fleet: what the views say of all agents, and of one that is asked for. What is not known is a dash, never a zero.
import * as api from "./api.js";
import { $, attr, h, svg, text, tileIn } from "./dom.js";
import * as f from "./format.js";

const EVERY_MS = 10000;
const DIMENSIONS = { account: "Account", platform: "Platform", version: "Version" };
const LABELS = 40; // of an agent that are shown

const named = (name) => (name == null ? h("span", { class: "muted" }, "none said") : name === "" ? h("span", { class: "muted" }, "empty") : name);

// How fresh an answer is, by the clock of this page's server where that said it.
const fresh = ({ freshness: { lag, age_ms: age, stale } }, now) =>
  h("span", { class: "fresh", "data-stale": stale }, `${stale ? "stale: " : ""}as of ${f.clock(now - age)}, ${f.plural(lag, "record")} behind`);

const troubled = ({ title, detail, view }) => `${title} View ${view}: ${detail}.`;

const table = (kind, head, rows) =>
  h("table", { class: kind }, h("thead", {}, h("tr", {}, ...head.map((c) => h("th", { scope: "col" }, c)))), h("tbody", {}, ...rows));

const numbers = ({ online, offline }) => [online, offline, online + offline].map((n) => h("td", { title: f.exact(n) }, f.count(n)));

const dimension = (label, { trouble, rows, others, ...part }, now) => {
  if (trouble) return [h("p", { class: "empty" }, `By ${label.toLowerCase()}: not known.`)];
  if (!rows.length) return [h("p", { class: "empty" }, `By ${label.toLowerCase()}: no agents.`), fresh(part, now)];
  const lines = rows.map((row) => h("tr", {}, h("th", { scope: "row" }, named(row.name)), ...numbers(row)));
  if (others) lines.push(h("tr", {}, h("th", { scope: "row", class: "muted" }, f.plural(others.values, "other")), ...numbers(others)));
  return [table("dimension", [label, "Online", "Offline", "Agents"], lines), fresh(part, now)];
};

// Bars upwards for agents that came online, downwards for those that went offline.
const WIDE = 20;
const HIGH = 24;
const drawn = ({ steps, step_ms: step }) => {
  const most = Math.max(1, ...steps.flatMap(({ online, offline }) => [online, offline]));
  const said = steps.map(({ at, online, offline }) => `${f.clock(at).slice(0, 5)}: ${f.exact(online)} came online, ${f.exact(offline)} went offline`);
  const size = (n) => (n ? Math.max(1, (n / most) * HIGH) : 0);
  const bars = steps.map(({ online, offline }, n) =>
    svg(
      "g",
      {},
      svg("title", {}, said[n]),
      svg("rect", { x: n * WIDE + 3, y: HIGH + 1 - size(online), width: WIDE - 6, height: size(online) }),
      svg("rect", { class: "offline", x: n * WIDE + 3, y: HIGH + 2, width: WIDE - 6, height: size(offline) }),
    ),
  );
  return svg(
    "svg",
    { class: "changes", viewBox: `0 0 ${WIDE * steps.length} ${2 * HIGH + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": `By ${step / 60000} minutes. ${said.join("; ")}` },
    svg("line", { x1: 0, x2: WIDE * steps.length, y1: HIGH + 1.5, y2: HIGH + 1.5 }),
    ...bars,
  );
};

// One agent

const line = (term, ...said) => [h("dt", {}, term), h("dd", {}, ...said)];
const state = (online) => h("span", { class: "pill", "data-state": online ? "online" : "offline" }, online ? "online" : "offline");
const ago = (at, now) => `${f.moment(at, now)}, ${f.age(now - at)} ago`;

const card = (title, part, now, make) =>
  h(
    "article",
    { class: "scroll" },
    h("h4", {}, title),
    ...(part.trouble ? [h("p", { class: "empty", role: "alert" }, troubled(part.trouble))] : [...make(part), fresh(part, now)]),
  );

const checkIn = (now) => ({ value }) => {
  if (!value) return [h("p", { class: "empty" }, "No agent of this name has checked in.")];
  const labels = Object.entries(value.labels ?? {});
  const shown = labels.slice(0, LABELS).map(([name, said]) => h("div", {}, `${name} = ${said}`));
  if (labels.length > LABELS) shown.push(h("div", { class: "muted" }, `and ${f.exact(labels.length - LABELS)} more`));
  return [
    h(
      "dl",
      { class: "cure" },
      ...line("State", state(value.online), ` since ${f.moment(value.since, now)}`),
      ...line("Checked in", ago(value.timestamp, now)),
      ...line("Account", named(value.account)),
      ...line("Platform", named(value.platform)),
      ...line("Version", named(value.version)),
      ...line("Labels", ...(shown.length ? shown : ["none"])),
    ),
  ];
};

const assignment = (now) => ({ value, count }) => {
  if (!value) return [h("p", { class: "empty" }, "Nothing has been assigned to it.")];
  const rows = value.tests.map(({ id, name, kind, target, every_seconds: every }) =>
    h("tr", {}, h("th", { scope: "row" }, `${id} ${name ?? ""}`), h("td", {}, kind ?? f.DASH), h("td", {}, target ?? f.DASH), h("td", {}, every == null ? f.DASH : f.span(every * 1000))),
  );
  const about = `decided by what it said at ${f.moment(value.timestamp, now)}, when it was ${value.online ? "online" : "offline"}`;
  return [
    h("p", { class: "empty" }, `${count ? f.plural(count, "test") : "No tests"}, ${about}.`),
    ...(rows.length ? [table("tests", ["Test", "Kind", "Target", "Every"], rows)] : []),
    ...(count > rows.length ? [h("p", { class: "empty" }, `The first ${rows.length} are shown.`)] : []),
  ];
};

const alerts = (now) => ({ rows, more }) => {
  if (!rows.length) return [h("p", { class: "empty" }, "None of its rules has told anything.")];
  const lines = rows.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, f.moment(one.window_end, now)),
      h("td", {}, `${one.rule}`),
      h("td", {}, `${one.metric ?? f.DASH} ${one.comparison ?? ""} ${one.threshold ?? f.DASH}`),
      h("td", {}, `${one.value == null ? f.DASH : Number(one.value.toPrecision(6))} of ${f.count(one.count)}`),
    ),
  );
  return [
    table("alerts", ["Window's end", "Rule", "Broken", "Average of"], lines),
    ...(more ? [h("p", { class: "empty" }, `The newest ${rows.length} are shown.`)] : []),
  ];
};

export class Fleet {
  constructor({ guard }) {
    this.guard = guard;
    this.at = -Infinity;
    this.busy = false;
    this.asked = 0;
    const totals = $("fleet-totals");
    this.tiles = {
      all: tileIn(totals, "Agents", "All agents that are known"),
      online: tileIn(totals, "Online", "Agents that checked in lately"),
      offline: tileIn(totals, "Offline", "Agents that have been silent for too long"),
      came: tileIn(totals, "Came online", "Agents that are online, and came online within the last hour"),
      went: tileIn(totals, "Went offline", "Agents that are offline, and went offline within the last hour"),
    };
    this.changes = h("div", {});
    totals.append(h("div", { class: "tile wide", title: "Agents by when they came online (up) or went offline (down), by their last change" }, h("span", { class: "name" }, "Last hour: came online ▲, went offline ▼"), this.changes));
    $("agent-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.find($("agent-key").value);
    });
  }

  // The section is there where the view is declared that it is made of.
  declare(declared) {
    attr($("fleet"), "hidden", !declared.some(({ kind, name }) => kind === "view" && name === "agents"));
    this.refresh();
  }

  allow(viewer) {
    this.guard($("agent-find"), viewer);
    attr($("agent-key"), "disabled", !viewer.may_act);
  }

  async refresh() {
    if ($("fleet").hidden || document.hidden || this.busy || performance.now() - this.at < EVERY_MS) return;
    this.busy = true;
    try {
      this.show(await api.fleet());
      attr($("fleet"), "data-old", null);
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      text($("fleet-trouble"), `Not brought up to date: ${error.message}`);
      attr($("fleet"), "data-old", true);
    } finally {
      this.at = performance.now();
      this.busy = false;
    }
  }

  show(found) {
    const { now, agents, changes } = found;
    const troubles = Object.values(found).flatMap((part) => (part?.trouble ? [troubled(part.trouble)] : []));
    text($("fleet-trouble"), [...new Set(troubles)].join(" "));
    const { all, online, offline, came, went } = this.tiles;
    const tell = ({ value, note }, number, part, said = "") => {
      text(value, f.count(number));
      attr(value, "title", f.exact(number));
      note.replaceChildren(part.trouble ? "not known" : said || fresh(part, now));
    };
    const total = agents.trouble ? null : agents.online + agents.offline;
    const share = (n) => (total ? `${((n / total) * 100).toFixed(1)} %` : f.DASH);
    tell(all, total, agents);
    tell(online, agents.online, agents, share(agents.online));
    tell(offline, agents.offline, agents, share(agents.offline));
    tell(came, changes.online, changes, `since ${f.clock(changes.begin).slice(0, 5)}, still online`);
    tell(went, changes.offline, changes, `since ${f.clock(changes.begin).slice(0, 5)}, still offline`);
    this.changes.replaceChildren(...(changes.trouble ? [h("span", { class: "note" }, "not known")] : [drawn(changes), fresh(changes, now)]));
    for (const [key, label] of Object.entries(DIMENSIONS)) $(`fleet-${key}`).replaceChildren(...dimension(label, found[key], now));
  }

  async find(key) {
    const mine = (this.asked += 1);
    const place = $("agent");
    place.replaceChildren(h("p", { class: "muted" }, "Reading …"));
    let made;
    try {
      const { now, said, assigned, alerts: told } = await api.agent(key);
      made = [
        h("h3", {}, key),
        h(
          "div",
          { class: "thirds" },
          card("Last check-in", said, now, checkIn(now)),
          card("Assignment", assigned, now, assignment(now)),
          told ? card(`Last alerts of account ${told.account}, one of each rule`, told, now, alerts(now)) : null,
        ),
      ];
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      made = [h("p", { role: "alert", class: "empty" }, `Not read: ${error.message}`)];
    }
    if (mine === this.asked) place.replaceChildren(...made);
  }
}
