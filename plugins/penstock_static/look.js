// One dialog for what is only looked at: a state and its cure, a driver's log, records that were put aside.
import { $, attr, h, marked, text } from "./dom.js";

const dialog = $("look");
const body = $("look-body");
const again = $("look-again");
let shown = null;

// make: gives the nodes to show, at once or later; what is asked for later can be read again.
export const look = ({ title, about = "", make, reread = false, atEnd = false }) => {
  shown = { make, atEnd };
  text($("look-title"), title);
  $("look-about").replaceChildren(...marked(about));
  attr(again, "hidden", !reread);
  dialog.showModal();
  read();
};

const read = async () => {
  const mine = shown;
  again.disabled = true;
  body.replaceChildren(h("p", { class: "muted" }, "Reading …"));
  try {
    const nodes = await mine.make();
    if (mine !== shown) return;
    body.replaceChildren(...nodes);
    body.scrollTop = mine.atEnd ? body.scrollHeight : 0;
  } catch (error) {
    if (mine === shown) body.replaceChildren(h("p", { role: "alert", class: "failed" }, `Not read: ${error.message}`));
  } finally {
    again.disabled = false;
  }
};

again.addEventListener("click", read);
$("look-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  shown = null;
  body.replaceChildren();
});
