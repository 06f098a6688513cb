// Small helpers over the DOM: everything shown is set as text, never as markup.
export const $ = (id) => document.getElementById(id);

export const h = (tag, props = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value == null || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
};

// Writes only what changed, so that selections, focus and screen readers are left alone.
export const text = (node, value) => {
  if (node.textContent !== value) node.textContent = value;
};

export const attr = (node, name, value) => {
  if (value == null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
};
