// Small helpers over the DOM: everything shown is set as text, never as markup.
export const $ = (id) => document.getElementById(id);

const build = (node, props, children) => {
  for (const [key, value] of Object.entries(props)) {
    if (value == null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
};

export const h = (tag, props = {}, ...children) => build(document.createElement(tag), props, children);

export const svg = (tag, props = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);

// Text with code between backticks and emphasis between asterisks.
export const marked = (markup) =>
  markup.split(/(`[^`]+`|\*[^*]+\*)/).map((part) => {
    if (part.startsWith("`")) return h("code", {}, part.slice(1, -1));
    return part.startsWith("*") && part.length > 1 ? h("em", {}, part.slice(1, -1)) : part;
  });

const DAGS = new URL("../../../dags/", import.meta.url);

// A link to a DAG. what: what it opens, for those who do not see its place.
export const dagLink = (dag, label, what) => h("a", { href: new URL(dag, DAGS), "aria-label": what, onclick: openInAirflow }, label);

// Follows a link to another page of Airflow, which shows this page in a frame: its own document must follow the link.
const openInAirflow = (event) => {
  if (window.parent === window) return;
  event.preventDefault();
  const link = window.parent.document.createElement("a");
  link.href = event.currentTarget.href;
  if (event.ctrlKey || event.metaKey) link.target = "_blank";
  link.click();
};

// Writes only what changed, so that selections, focus and screen readers are left alone.
export const text = (node, value) => {
  if (node.textContent !== value) node.textContent = value;
};

export const attr = (node, name, value) => {
  if (value == null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
};

export const tileIn = (place, name, title) => {
  const value = h("span", { class: "value" });
  const note = h("span", { class: "note" });
  place.append(h("div", { class: "tile", title }, h("span", { class: "name" }, name), value, note));
  return { value, note };
};
