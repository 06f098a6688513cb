// The declarations as a graph and a list. A name that is picked in one is marked in both.
import { $, attr, h, text } from "./dom.js";
import { DASH } from "./format.js";
import { Graph } from "./graph.js";

const HEAD = ["Kind", "Name", "App", "Reads", "Writes", "Output mode", "Runs"];

const place = ({ kind, name }) =>
  h("div", {}, name, kind === "topic" ? null : h("span", { class: "muted" }, ` ${kind}`));
const names = (places, masks = []) =>
  h("td", { class: "places" }, ...(places.length ? places.map(place) : [DASH]), ...masks.map((mask) => h("div", { class: "muted" }, mask)));

const PARTLY = "Some declarations are invalid: `penstock catalog` shows the errors. All others are shown.";

export class Catalog {
  constructor() {
    this.key = "";
    this.picked = "";
    this.buttons = [];
    this.graph = new Graph($("catalog-graph"), { onPick: (name) => this.pick(name) });
  }

  show(catalog) {
    text($("catalog-error"), catalog.wrong ? PARTLY : "");
    const key = JSON.stringify(catalog);
    if (this.key === key) return;
    this.key = key;
    this.graph.draw(catalog.graph, new Map(catalog.declared.map((one) => [`${one.kind} ${one.name}`, one.runs])));
    this.buttons = catalog.declared.map(({ name }) =>
      h("button", { type: "button", class: "pick", "data-name": name, onclick: () => this.pick(name) }, name),
    );
    const rows = catalog.declared.map((one, n) =>
      h(
        "tr",
        {},
        h("td", { class: "when" }, one.kind),
        h("th", { scope: "row", class: "what", title: [one.description, one.location].filter(Boolean).join("\n") }, this.buttons[n]),
        h("td", { class: "what" }, one.app ?? DASH),
        names(one.reads),
        names(one.writes, one.masks),
        h("td", { class: "what" }, one.output_mode || DASH),
        one.runs ? h("td", {}, "yes") : h("td", { class: "what muted", title: catalog.not_run }, "declared only"),
      ),
    );
    $("catalog").replaceChildren(
      h(
        "table",
        { class: "list declared" },
        h("thead", {}, h("tr", {}, ...HEAD.map((c) => h("th", { scope: "col" }, c)))),
        h("tbody", {}, ...rows),
      ),
      ...(catalog.declared.every((one) => one.runs) ? [] : [h("p", { class: "empty" }, `${catalog.not_run}.`)]),
    );
    this.pick(catalog.graph.nodes.some((node) => node.name === this.picked) ? this.picked : "", true);
  }

  // A second pick of a name removes the mark.
  pick(name, keep = false) {
    this.picked = !keep && this.picked === name ? "" : name;
    this.graph.pick(this.picked);
    for (const button of this.buttons) attr(button, "aria-pressed", button.dataset.name === this.picked ? "true" : "false");
  }

  fail({ message }) {
    text($("catalog-error"), this.key ? `${message} The earlier list is shown.` : message);
  }
}
