// A state as a button that opens its meaning and remedy.
import { attr, h, marked, text } from "./dom.js";
import { openDialog } from "./dialog.js";

export class StateButton {
  // section: of docs/operations.md that describes the states.
  constructor(name, section = "States") {
    this.name = name;
    this.section = section;
    this.node = h("button", { type: "button", class: "pill", "aria-haspopup": "dialog", onclick: () => this.explain() });
  }

  show(state, why, { states, remedies }) {
    Object.assign(this, { state, why, meaning: states[state] ?? "", remedy: remedies[state] ?? "" });
    text(this.node, state);
    attr(this.node, "data-state", state);
    attr(this.node, "title", this.meaning);
    attr(this.node, "aria-label", `${state}: what it means for ${this.name}`);
  }

  explain() {
    const { state, why, meaning, remedy } = this;
    const line = (term, nodes) => [h("dt", {}, term), h("dd", {}, ...nodes)];
    openDialog({
      title: `${this.name} is ${state}`,
      make: () => [
        h(
          "dl",
          { class: "remedy" },
          ...line("Meaning", [meaning]),
          ...(why ? line("Reason", [why]) : []),
          ...line("What to do", remedy ? marked(remedy) : ["nothing"]),
          ...line("More", [`${this.section}, in `, h("code", {}, "docs/operations.md")]),
        ),
      ],
    });
  }
}
