// Parts that several views have: tables, filters and pages of rows.
import * as api from "./api.js";
import { attr, h, marked, text } from "./dom.js";
import * as f from "./format.js";
import { linkTo, replace, retarget } from "./router.js";

const TYPING_MS = 250;

// A column with an asterisk has numbers; one without a name is named for screen readers only.
const heading = (column, hints) => {
  const name = column.replace("*", "");
  return h("th", { scope: "col", class: column.startsWith("*") && "n", title: hints[name] }, name || h("span", { class: "unseen" }, "Actions"));
};

export const table = (kind, columns, rows, hints = {}) =>
  h("table", { class: kind }, h("thead", {}, h("tr", {}, ...columns.map((column) => heading(column, hints)))), h("tbody", {}, ...rows));

// A cell with a value, and below it a smaller one.
export const pair = (label) => {
  const first = h("span", { class: "v" });
  const second = h("span", { class: "s" });
  return { cell: h("td", { class: "n", "data-label": label }, first, second), first, second };
};
export const pairs = (labels) => Object.fromEntries(labels.map((label) => [label, pair(label)]));

// Why something is as it is, below its name.
export const reason = (why) => (why ? h("span", { class: "s why", title: why }, why.split("\n", 1)[0]) : null);

// A box that scrolls by itself, which a keyboard reaches.
export const scrolled = (label, ...children) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);

export const empty = (...content) => h("p", { class: "empty" }, ...content);

// That nothing is declared, once it is known what is.
export const NOT_KNOWN = "What is declared is not known yet: the files are being read. If that lasts, `penstock catalog` says why.";
export const undeclared = ({ declarations_known: known }, sentence) => empty(...marked(known ? sentence : NOT_KNOWN));

// Content that is replaced only if its key differs, so that selections and scroll positions stay.
export class Replaced {
  constructor(node) {
    this.node = node;
    this.key = null;
  }

  show(key, make) {
    const written = JSON.stringify(key);
    if (this.key === written) return;
    this.key = written;
    this.node.replaceChildren(...[make()].flat());
  }
}

// Fields over a table whose values are the query of the address.
export class Filters {
  // choices: by the name of a query parameter, its label.
  constructor(view, label, choices = {}) {
    this.view = view;
    this.timer = null;
    this.search = h("input", { type: "search", "aria-label": label, placeholder: label, maxlength: 200, autocomplete: "off", spellcheck: "false", oninput: () => this.typed() });
    this.choices = Object.fromEntries(
      Object.entries(choices).map(([name, label]) => [name, h("select", { "aria-label": label, onchange: () => this.apply() }, h("option", { value: "" }, label))]),
    );
    this.count = h("span", { class: "muted", role: "status" });
    this.node = h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, this.search, ...Object.values(this.choices), this.count);
  }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.apply(), TYPING_MS);
  }

  apply() {
    const chosen = Object.fromEntries(Object.entries(this.choices).map(([name, select]) => [name, select.value]));
    replace([this.view], { q: this.search.value.trim(), ...chosen });
  }

  // options: by the name of a choice, its values, or pairs of a value and a text.
  show({ matching, total }, query, options = {}) {
    for (const [name, select] of Object.entries(this.choices)) {
      const texts = new Map((options[name] ?? []).map((option) => [option].flat()).map(([value, words = value]) => [value, words]));
      if (query[name] && !texts.has(query[name])) texts.set(query[name], query[name]);
      const values = [...texts.keys()];
      const shown = [...select.options].slice(1).map((option) => option.value);
      if (shown.join("\n") !== values.join("\n")) select.replaceChildren(select.options[0], ...values.map((value) => h("option", { value }, texts.get(value))));
      if (document.activeElement !== select) select.value = query[name] ?? "";
    }
    if (document.activeElement !== this.search) this.search.value = query.q ?? "";
    text(this.count, matching == null ? "" : matching === total ? f.exact(total) : `${f.exact(matching)} of ${f.exact(total)}`);
  }
}

// Links to the pages before and behind.
export class Pager {
  constructor(view) {
    this.view = view;
    const link = (label) => h("a", linkTo([view]), label);
    [this.before, this.after] = [link("Previous page"), link("Next page")];
    this.place = h("span", { class: "muted" });
    this.node = h("nav", { class: "pager", "aria-label": "Pages", hidden: true }, this.before, this.place, this.after);
  }

  show({ page, pages }, query) {
    attr(this.node, "hidden", !(pages > 1));
    text(this.place, `page ${f.exact(page)} of ${f.exact(pages)}`);
    for (const [link, number] of [[this.before, page - 1], [this.after, page + 1]]) {
      attr(link, "hidden", number < 1 || number > pages);
      retarget(link, [this.view], { ...query, page: number });
    }
  }
}

// A list of the server's, with a filter and pages. Rows are kept by name, so that what is unfolded stays.
export class ListView {
  // view: of the API, and the name of its rows in the answer. Row: has `nodes`, and shows one of them. none: a sentence.
  constructor({ acted, guard }, { view, search, columns, hints, Row, none }) {
    Object.assign(this, { acted, guard, view, columns, hints, Row, none });
    this.shape = null;
    this.rows = new Map();
    this.filters = new Filters(view, search);
    this.pager = new Pager(view);
    this.place = h("div", { class: "scroll", id: view });
    this.node = h("div", {}, this.filters.node, this.place, this.pager.node);
  }

  load(query) {
    return api[this.view](query);
  }

  show(data, query) {
    const names = data[this.view].map((one) => one.name);
    const shape = JSON.stringify([data.total > 0, data.declarations_known, names]);
    if (this.shape !== shape) {
      this.shape = shape;
      this.rows = new Map(names.map((name) => [name, this.rows.get(name) ?? new this.Row(this, name)]));
      const nodes = [...this.rows.values()].flatMap((row) => row.nodes);
      this.place.replaceChildren(names.length ? table(`${this.view} cards`, this.columns, nodes, this.hints) : data.total ? empty("Nothing matches.") : undeclared(data, this.none));
    }
    for (const one of data[this.view]) this.rows.get(one.name).show(one, data);
    this.filters.show(data, query);
    this.pager.show(data, query);
  }
}
