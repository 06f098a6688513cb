// Views and their instances, and panels: sections that are declared over views. These show counts of rows, and what the
// views have about a key.
import * as api from "../api.js";
import { attr, h, marked, svg, text, tileIn } from "../dom.js";
import * as f from "../format.js";
import { linkTo } from "../router.js";
import { Replaced, empty, reason, scrolled, table, undeclared } from "../rows.js";
import { StateButton } from "../state.js";

const EVERY_MS = 10000;
const ENTRIES = 40; // of a map that are shown

const muted = (words) => h("span", { class: "muted" }, words);
const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);
const minute = (ms) => f.clock(ms).slice(0, 5);

// The time is by the clock of this page's server.
const freshness = ({ freshness: { lag, age_ms: age, stale } }, now) =>
  h("span", { class: "fresh", "data-stale": stale }, `${stale ? "stale: " : ""}as of ${f.clock(now - age)}, ${f.plural(lag, "record")} behind`);

const troubleText = ({ title, detail, view }) => `${title} View ${view}: ${detail}.`;

// Values

const plain = (value) => {
  if (value == null) return muted("none");
  if (value === "") return muted("empty");
  if (typeof value === "number") return `${Number.isInteger(value) ? value : Number(value.toPrecision(6))}`;
  if (typeof value !== "object") return `${value}`;
  const entries = Object.entries(value);
  const lines = entries.slice(0, ENTRIES).map(([name, entry]) => h("div", {}, `${name} = ${entry}`));
  if (entries.length > ENTRIES) lines.push(h("div", { class: "muted" }, `and ${f.exact(entries.length - ENTRIES)} more`));
  return lines.length ? h("div", {}, ...lines) : muted("none");
};

const FORMATS = {
  text: plain,
  time: (ms, { now }) => f.moment(ms, now),
  age: (ms, { now }) => `${f.moment(ms, now)}, ${f.age(now - ms)} ago`,
  seconds: (seconds) => f.span(seconds * 1000),
  status: (on, { names }) => h("span", { class: "pill", "data-state": on ? "status-on" : "status-off" }, names[on ? 0 : 1]),
};

// Fields without a value are left out where a value has several.
const formatted = ({ fields, format }, row, context) => {
  const values = fields.map((name) => row[name]).filter((value) => fields.length === 1 || value != null);
  const nodes = values.map((value) => (value == null ? plain(value) : FORMATS[format](value, context)));
  return nodes.length ? nodes.flatMap((node, n) => (n ? [" ", node] : [node])) : [f.DASH];
};

const rowsTable = (columns, rows, context) =>
  table(
    "rows",
    columns.map(({ title }) => title),
    rows.map((row) => h("tr", {}, ...columns.map((column, n) => h(n ? "td" : "th", { scope: n ? null : "row" }, ...formatted(column, row, context))))),
  );

const cardBody = ({ values, elements, columns, match, empty: none }, part, context) => {
  if (match) return part.rows.length ? [rowsTable(columns, part.rows, context), ...(part.more ? [empty(`The first ${part.rows.length} are shown.`)] : [])] : [empty(...marked(none))];
  const { value } = part;
  if (!value) return [empty(...marked(none))];
  const body = values.length ? [h("dl", { class: "remedy" }, ...values.flatMap((one) => [h("dt", {}, one.title), h("dd", {}, ...formatted(one, value, context))]))] : [];
  if (!elements) return body;
  const rows = value[elements] ?? [];
  body.push(empty(`${elements}: ${part.count ?? "none"}`), ...(rows.length ? [rowsTable(columns, rows, context)] : []));
  return part.count > rows.length ? [...body, empty(`The first ${rows.length} are shown.`)] : body;
};

const cardOf = (card, part, context) =>
  h(
    "article",
    { class: "scroll" },
    h("h5", {}, card.title + (card.match ? `, ${card.match} ${part.match}` : "")),
    ...(part.trouble ? [h("p", { class: "empty", role: "alert" }, troubleText(part.trouble))] : [...cardBody(card, part, context), freshness(part, context.now)]),
  );

// Bars upwards for rows whose status became true, downwards for the others.
const WIDE = 20;
const HIGH = 24;
const changesChart = ({ steps, step_ms: step }, [on, off]) => {
  const most = Math.max(1, ...steps.flatMap((counts) => [counts.on, counts.off]));
  const labels = steps.map((counts) => `${minute(counts.at)}: ${f.exact(counts.on)} became ${on}, ${f.exact(counts.off)} became ${off}`);
  const size = (n) => (n ? Math.max(1, (n / most) * HIGH) : 0);
  const bars = steps.map((counts, n) =>
    svg(
      "g",
      {},
      svg("title", {}, labels[n]),
      svg("rect", { x: n * WIDE + 3, y: HIGH + 1 - size(counts.on), width: WIDE - 6, height: size(counts.on) }),
      svg("rect", { class: "off", x: n * WIDE + 3, y: HIGH + 2, width: WIDE - 6, height: size(counts.off) }),
    ),
  );
  return svg(
    "svg",
    { class: "changes", viewBox: `0 0 ${WIDE * steps.length} ${2 * HIGH + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": `By ${step / 60000} minutes. ${labels.join("; ")}` },
    svg("line", { x1: 0, x2: WIDE * steps.length, y1: HIGH + 1.5, y2: HIGH + 1.5 }),
    ...bars,
  );
};

class Panel {
  constructor(declared, guard) {
    this.declared = declared;
    this.guard = guard;
    this.at = -Infinity;
    this.busy = false;
    this.searches = 0;
    const { name, title, singular, plural, dimensions, status, since, cards, status_names: [on, off] } = declared;
    const id = `panel-${name}`;
    this.trouble = h("p", { class: "panel-trouble", role: "status" });
    this.none = h("p", { class: "empty", hidden: true });
    const totals = h("div", { class: "tiles panel-totals" });
    this.tiles = { all: tileIn(totals, capital(plural), `All ${plural}`) };
    if (status) {
      this.tiles.on = tileIn(totals, capital(on), `${capital(plural)} that are ${on} now`);
      this.tiles.off = tileIn(totals, capital(off), `${capital(plural)} that are ${off} now`);
    }
    if (since) {
      this.tiles.becameOn = tileIn(totals, `Became ${on}`, `${capital(plural)} that became ${on} within the last hour and still are`);
      this.tiles.becameOff = tileIn(totals, `Became ${off}`, `${capital(plural)} that became ${off} within the last hour and still are`);
      this.changes = h("div", {});
      totals.append(h("div", { class: "tile wide", title: `${capital(plural)} by their last change` }, h("span", { class: "name" }, `Last hour: became ${on} ▲, became ${off} ▼`), this.changes));
    }
    this.dimensions = Object.entries(dimensions).map(([field, label]) => ({
      field,
      label,
      node: h("div", { class: "scroll", "data-field": field, tabindex: 0, role: "region", "aria-label": `${capital(plural)} by ${label.toLowerCase()}` }),
    }));
    this.input = h("input", { id: `${id}-key`, type: "search", required: true, maxlength: 4096, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
    this.button = h("button", { type: "submit" }, "Find");
    const onsubmit = (event) => {
      event.preventDefault();
      this.find(this.input.value);
    };
    this.result = h("div", { class: "panel-result", role: "region", "aria-label": `${capital(singular)} found`, "aria-live": "polite" });
    const form = h("form", { role: "search", "aria-label": capital(plural), onsubmit }, h("label", { for: `${id}-key` }, capital(singular)), this.input, this.button);
    this.node = h(
      "section",
      { id, class: "panel", "aria-labelledby": `h-${id}` },
      h("h3", { id: `h-${id}` }, title),
      this.trouble,
      this.none,
      totals,
      h("div", { class: "thirds" }, ...this.dimensions.map(({ node }) => node)),
      ...(cards.length ? [form, this.result] : []),
    );
  }

  allow(viewer) {
    this.guard(this.button, viewer);
    attr(this.input, "disabled", !viewer.may_operate);
  }

  async refresh() {
    if (document.hidden || this.busy || performance.now() - this.at < EVERY_MS) return;
    this.busy = true;
    try {
      this.show(await api.panel(this.declared.name));
      attr(this.node, "data-old", null);
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      text(this.trouble, `Not up to date: ${error.message}`);
      attr(this.node, "data-old", true);
    } finally {
      this.at = performance.now();
      this.busy = false;
    }
  }

  show({ now, total, dimensions, changes }) {
    const { plural, empty: hint, status_names: names } = this.declared;
    const troubles = [total, ...Object.values(dimensions), changes].flatMap((part) => (part?.trouble ? [troubleText(part.trouble)] : []));
    text(this.trouble, [...new Set(troubles)].join(" "));
    this.none.replaceChildren(...marked(total.all === 0 ? hint : ""));
    attr(this.none, "hidden", !hint || total.all !== 0);
    const show = (name, number, part, note) => {
      if (!this.tiles[name]) return;
      text(this.tiles[name].value, f.count(number));
      attr(this.tiles[name].value, "title", f.exact(number));
      this.tiles[name].note.replaceChildren(part.trouble ? "unknown" : (note ?? freshness(part, now)));
    };
    const share = (n) => (total.all ? `${((n / total.all) * 100).toFixed(1)} %` : f.DASH);
    show("all", total.all, total);
    for (const name of ["on", "off"]) show(name, total[name], total, share(total[name]));
    if (changes) {
      const since = changes.trouble ? "" : `since ${minute(changes.begin)}`;
      show("becameOn", changes.on, changes, `${since}, still ${names[0]}`);
      show("becameOff", changes.off, changes, `${since}, still ${names[1]}`);
      this.changes.replaceChildren(...(changes.trouble ? [h("span", { class: "note" }, "unknown")] : [changesChart(changes, names), freshness(changes, now)]));
    }
    for (const { field, label, node } of this.dimensions) node.replaceChildren(...this.dimension(label, dimensions[field], plural, now));
  }

  dimension(label, { trouble, rows, others, ...part }, plural, now) {
    if (trouble) return [empty(`By ${label.toLowerCase()}: unknown.`)];
    if (!rows.length) return [empty(`By ${label.toLowerCase()}: no ${plural}.`), freshness(part, now)];
    const { status, status_names: names } = this.declared;
    const line = (head, counts) => h("tr", {}, head, ...(status ? ["on", "off", "all"] : ["all"]).map((name) => h("td", { title: f.exact(counts[name]) }, f.count(counts[name]))));
    const lines = rows.map((row) => line(h("th", { scope: "row" }, plain(row.name)), row));
    if (others) lines.push(line(h("th", { scope: "row", class: "muted" }, f.plural(others.values, "other")), others));
    return [table("dimension", [label, ...(status ? names.map(capital) : []), capital(plural)], lines), freshness(part, now)];
  }

  async find(key) {
    const search = (this.searches += 1);
    this.result.replaceChildren(h("p", { class: "muted" }, "Reading …"));
    let nodes;
    try {
      const { now, cards } = await api.panelCards(this.declared.name, key);
      const context = { now, names: this.declared.status_names };
      const articles = this.declared.cards.map((card, n) => cards[n] && cardOf(card, cards[n], context));
      nodes = [h("h4", { class: "key" }, key), h("div", { class: "thirds" }, ...articles)];
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      nodes = [h("p", { role: "alert", class: "empty" }, `Not read: ${error.message}`)];
    }
    if (search === this.searches) this.result.replaceChildren(...nodes);
  }
}

const viewRow = (states) => (view) => {
  const rows = view.instances.length ? view.instances : [null];
  return rows.map((instance, n) => {
    const state = instance && new StateButton(instance.name);
    state?.show(instance.state, instance.why, states);
    return h(
      "tr",
      { "data-state": instance?.state },
      ...(n ? [] : [h("th", { scope: "row", rowspan: rows.length, title: view.location }, view.name), h("td", { rowspan: rows.length, class: "places" }, view.topic)]),
      h("td", {}, ...(instance ? [h("a", linkTo(["streams", instance.name]), instance.name), reason(instance.why)] : [h("span", { class: "muted" }, "no instance serves it")])),
      h("td", {}, state?.node ?? f.DASH),
      h("td", { class: "n" }, f.count(instance?.lag)),
      h("td", { class: "n" }, f.count(instance?.rows)),
    );
  });
};

export class ViewsView {
  constructor({ guard }) {
    this.guard = guard;
    this.panels = new Map(); // by their declaration
    this.place = h("div", { id: "panels" });
    this.list = new Replaced(scrolled("Served views"));
    this.list.node.id = "served-views";
    this.node = h("div", {}, this.list.node, this.place);
    this.timer = setInterval(() => this.refresh(), 1000);
  }

  async load() {
    const [data, { panels }] = await Promise.all([api.views(), api.catalog()]);
    return { ...data, panels };
  }

  show(data) {
    const { views, viewer } = data;
    const key = [data.declarations_known, ...views.map((view) => [view.name, view.topic, view.instances.map((one) => [one.name, one.state, one.why, f.count(one.lag), f.count(one.rows)])])];
    this.list.show(key, () =>
      views.length
        ? table("list", ["View", "Reads", "Instance", "State", "*Lag", "*Rows"], views.flatMap(viewRow(data)))
        : undeclared(data, "No views are declared: they serve the newest value of each key of a topic over HTTP, see docs/views.md."),
    );
    this.declare(data.panels);
    for (const panel of this.panels.values()) panel.allow(viewer);
  }

  // Sections of panels that are declared as before stay, with what is typed and shown in them.
  declare(declared) {
    const keys = declared.map((one) => JSON.stringify(one));
    this.panels = new Map(keys.map((key, n) => [key, this.panels.get(key) ?? new Panel(declared[n], this.guard)]));
    const nodes = [...this.panels.values()].map(({ node }) => node);
    const { place } = this;
    if (nodes.length !== place.children.length || nodes.some((node, n) => node !== place.children[n])) place.replaceChildren(...nodes);
    this.refresh();
  }

  refresh() {
    for (const panel of this.panels.values()) panel.refresh();
  }

  end() {
    clearInterval(this.timer);
  }
}
