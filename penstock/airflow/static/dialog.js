// One dialog for what is only read: a state and its remedy, a driver's log, dead letters.
import { $, attr, h, marked, text } from "./dom.js";

const dialog = $("dialog");
const body = $("dialog-body");
const reload = $("dialog-reload");
let content = null;

// A button that opens a dialog. what: what it opens, for those who do not see its place.
export const dialogButton = (label, what, onclick) =>
  h("button", { type: "button", "aria-haspopup": "dialog", "aria-label": what, onclick }, `${label} …`);

// make: returns the nodes to show, or a promise of them; with reread they can be read again.
export const openDialog = ({ title, about = "", make, reread = false, atEnd = false }) => {
  content = { make, atEnd };
  text($("dialog-title"), title);
  $("dialog-about").replaceChildren(...marked(about));
  attr(reload, "hidden", !reread);
  dialog.showModal();
  read();
};

export const closeDialog = () => dialog.close();

const read = async () => {
  const current = content;
  reload.disabled = true;
  body.replaceChildren(h("p", { class: "muted" }, "Reading …"));
  try {
    const nodes = await current.make();
    if (current !== content) return;
    body.replaceChildren(...nodes);
    body.scrollTop = current.atEnd ? body.scrollHeight : 0;
  } catch (error) {
    if (current === content) body.replaceChildren(h("p", { role: "alert", class: "failed" }, `Not read: ${error.message}`));
  } finally {
    reload.disabled = false;
  }
};

reload.addEventListener("click", read);
$("dialog-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  content = null;
  body.replaceChildren();
});
