// A preview of a stream: the rows that it would write now.
import * as api from "./api.js";
import { h } from "./dom.js";
import * as f from "./format.js";
import { openDialog } from "./dialog.js";

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value || f.DASH));

const rowTable = (rows) =>
  h(
    "table",
    { class: "preview" },
    h("thead", {}, h("tr", {}, ...["Topic", "Key", "Value"].map((c) => h("th", { scope: "col" }, c)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.output), h("td", {}, h("code", {}, row.key ?? "")), h("td", {}, h("code", {}, row.value ?? "tombstone"))))),
  );

export const showPreview = (stream) =>
  openDialog({
    title: `Preview of ${stream}`,
    about: "The declaration on the disk runs on the live topics for five seconds, as `penstock streams preview`, and writes nothing. Where no Spark session is ready, one takes some time to start.",
    reread: true,
    make: async () => {
      const { facts, rows, totals } = await api.preview(stream);
      const read = Object.entries(facts.records).map(([topic, n]) => `${topic} (${f.exact(n)} records)`).join(", ");
      return [
        h(
          "dl",
          { class: "facts wide" },
          fact("Reads", read),
          fact("Columns", facts.columns.map(([name, kind]) => `${name} ${kind}`).join(", ")),
          facts.masks.length ? fact("Masked", facts.masks.map((one) => `${one.column} ${one.method}`).join(", ")) : null,
          fact("Mode", facts.output_mode),
          fact("State", facts.state.join("; ")),
          fact("A release", facts.release),
          fact("Late records", f.exact(totals.late)),
          fact("Dead letters", f.exact(totals.dead)),
          ...Object.entries(totals.violations).map(([rule, n]) => fact(`Violations of ${rule}`, f.exact(n))),
        ),
        rows.length ? rowTable(rows) : h("p", { class: "muted" }, "No row was written: no input arrived, or no window was closed."),
        ...totals.dead_examples.map(({ value, reason }) => h("article", { class: "letter" }, h("h4", {}, reason), h("pre", { class: "error", tabindex: "0" }, value ?? "no value"))),
      ];
    },
  });
