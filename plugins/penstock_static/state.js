// The state of something as a button: it leads to what the state means and what to do.
import { attr, h, marked, text } from "./dom.js";
import { look } from "./look.js";

export class StateButton {
  // section: of the docs, where the states stand.
  constructor(name, section = "States") {
    this.name = name;
    this.section = section;
    this.node = h("button", { type: "button", class: "pill", "aria-haspopup": "dialog", onclick: () => this.explain() });
  }

  show(state, why, { states, remedies }) {
    Object.assign(this, { state, why, meaning: states[state] ?? "", cure: remedies[state] ?? "" });
    text(this.node, state);
    attr(this.node, "data-state", state);
    attr(this.node, "title", this.meaning);
    attr(this.node, "aria-label", `${state}: what it means for ${this.name}`);
  }

  explain() {
    const { state, why, meaning, cure } = this;
    const line = (term, said) => [h("dt", {}, term), h("dd", {}, ...said)];
    look({
      title: `${this.name} is ${state}`,
      make: () => [
        h(
          "dl",
          { class: "cure" },
          ...line("Meaning", [meaning]),
          ...(why ? line("Reason", [why]) : []),
          ...line("What to do", cure ? marked(cure) : ["nothing"]),
          ...line("More", [`${this.section}, in `, h("code", {}, "docs/operations.md")]),
        ),
      ],
    });
  }
}
