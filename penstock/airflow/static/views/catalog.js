// The declarations as a graph and a list. A name that is picked in one is marked in both, and is part of the address.
import * as api from "../api.js";
import { attr, h, text } from "../dom.js";
import { DASH } from "../format.js";
import { Graph } from "../graph.js";
import { go, linkTo } from "../router.js";
import { Replaced, empty, scrolled, table } from "../rows.js";

const HEAD = ["Kind", "Name", "App", "Reads", "Writes", "Output mode", "Run by Penstock"];
const PARTLY = "Some declarations are invalid: `penstock catalog` shows the errors. All others are shown.";
const STREAMS = new Set(["stream", "sink", "capture"]);

const place = ({ kind, name }) => h("div", {}, name, kind === "topic" ? null : h("span", { class: "muted" }, ` ${kind}`));
const names = (places, masks = []) =>
  h("td", { class: "places" }, ...(places.length ? places.map(place) : [DASH]), ...masks.map((mask) => h("div", { class: "muted" }, mask)));

export class CatalogView {
  constructor(_, [picked = ""]) {
    this.picked = picked;
    this.buttons = [];
    this.error = h("p", { id: "catalog-error", role: "status" });
    const host = scrolled("What feeds what");
    host.id = "catalog-graph";
    host.classList.add("graph");
    this.graph = new Graph(host, { onPick: (name) => this.pick(name) });
    this.zoom = h("div", { class: "buttons zoom", role: "group", "aria-label": "Size of the graph" });
    for (const [label, what, factor] of [["−", "Smaller", 0.8], ["+", "Larger", 1.25], ["Fit", "Fit into the frame", 0]]) {
      this.zoom.append(h("button", { type: "button", "aria-label": what, onclick: () => this.graph.scale(factor) }, label));
    }
    this.names = h("datalist", { id: "catalog-names" });
    this.search = h("input", { type: "search", list: "catalog-names", "aria-label": "Name to mark", placeholder: "Name to mark", maxlength: 200, autocomplete: "off", spellcheck: "false" });
    const onsubmit = (event) => {
      event.preventDefault();
      this.find(this.search.value.trim());
    };
    // A whole name is one that was chosen of the list.
    const oninput = () => this.catalog?.graph.nodes.some(({ name }) => name === this.search.value) && this.find(this.search.value);
    this.form = h("form", { role: "search", "aria-label": "Catalog", onsubmit, oninput }, this.search, this.names);
    this.about = h("span", { class: "muted", role: "status" });
    this.opened = h("a", { hidden: true, ...linkTo(["streams"]) });
    const list = scrolled("Declarations");
    list.id = "catalog";
    this.list = new Replaced(list);
    this.node = h("div", {}, this.error, h("div", { class: "filters" }, this.form, this.zoom, this.about, this.opened), host, list);
  }

  turn([picked = ""]) {
    this.picked = picked;
    if (this.catalog) this.mark();
    return true;
  }

  async load() {
    const [common, catalog] = await Promise.all([api.lags(), api.catalog()]);
    this.catalog = catalog;
    return { ...common, catalog };
  }

  show({ catalog, lags }) {
    text(this.error, catalog.wrong ? PARTLY : "");
    const { declared, graph } = catalog;
    this.list.show([declared, graph], () => {
      this.graph.draw(graph, new Map(declared.map((one) => [`${one.kind} ${one.name}`, one.runs])));
      this.names.replaceChildren(...[...new Set(graph.nodes.map((node) => node.name))].map((name) => h("option", { value: name })));
      this.marked = null;
      this.buttons = declared.map(({ name }) => h("button", { type: "button", class: "pick", "data-name": name, onclick: () => this.pick(name) }, name));
      const rows = declared.map((one, n) => this.row(one, this.buttons[n], catalog.not_run));
      if (!rows.length) return empty("Nothing is declared yet: docs/tutorial.md shows how to declare a stream.");
      return [table("list declared", HEAD, rows), ...(declared.every((one) => one.runs) ? [] : [empty(`${catalog.not_run}.`)])];
    });
    this.graph.showLags(lags);
    this.mark();
  }

  row(one, button, notRun) {
    return h(
      "tr",
      {},
      h("td", { class: "when" }, one.kind),
      h("th", { scope: "row", class: "what", title: [one.description, one.location].filter(Boolean).join("\n") }, button),
      h("td", { class: "what" }, one.app ?? DASH),
      names(one.reads),
      names(one.writes, one.masks),
      h("td", { class: "what" }, one.output_mode || DASH),
      one.runs ? h("td", {}, "yes") : h("td", { class: "what muted", title: notRun }, "declared only"),
    );
  }

  // The name that is written, or the first one that has it as a part.
  find(written) {
    const names = this.catalog?.graph.nodes.map((node) => node.name) ?? [];
    const found = names.find((name) => name === written) ?? names.find((name) => written && name.toLowerCase().includes(written.toLowerCase()));
    if (!written) go(["catalog"]);
    else if (found) go(["catalog", found]);
    else text(this.about, `Nothing is named like ${written}.`);
  }

  // A second pick of a name removes the mark.
  pick(name) {
    go(this.picked === name ? ["catalog"] : ["catalog", name]);
  }

  mark() {
    const known = this.catalog.graph.nodes.some((node) => node.name === this.picked) ? this.picked : "";
    if (this.marked === known) return;
    this.marked = known;
    if (document.activeElement !== this.search || known) this.search.value = known;
    this.graph.pick(known);
    for (const button of this.buttons) attr(button, "aria-pressed", String(button.dataset.name === known));
    text(this.about, known ? `${known}, with what feeds it and what it feeds` : "");
    const running = this.catalog.declared.find((one) => one.name === known && one.runs && STREAMS.has(one.kind));
    attr(this.opened, "hidden", !running);
    if (running) {
      text(this.opened, `Open ${known}`);
      attr(this.opened, "href", linkTo(["streams", known]).href);
    }
  }
}
