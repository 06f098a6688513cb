// Addresses of views. An address is the hash of this document, and of Airflow's page around it, whose address people send.
const around = (() => {
  try {
    return window.parent !== window && window.parent.document ? window.parent : null;
  } catch {
    return null; // a page of another origin
  }
})();

const decoded = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand
  }
};

// path: the parts of `#/streams/NAME?q=…` before the question mark, query: those behind it.
export const parse = (hash) => {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
};

// Of an address that the server sends, what `linkTo` takes.
export const placeOf = (hash) => {
  const { path, query } = parse(hash);
  return [path, query];
};

// Empty values of the query are left out.
export const address = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  return `#/${path.map(encodeURIComponent).join("/")}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
};

// How far each address was scrolled, so that *back* leads to the same rows. Entries of the browser's history keep nothing:
// the page around may replace them.
class Scroll {
  constructor() {
    this.left = new Map();
    this.wanted = null;
    this.isNew = true; // of an address that is opened by a link or a field
    history.scrollRestoration = "manual";
    // Rows that are being read are not what was left.
    const keep = () => this.wanted === null && this.left.set(location.hash, window.scrollY);
    for (const event of ["scroll", "pointerdown", "keydown"]) window.addEventListener(event, keep, { capture: true, passive: true });
  }

  // hash: of an address that is about to be opened.
  open(hash) {
    this.isNew = hash !== location.hash;
  }

  // At an address.
  begin() {
    this.wanted = this.isNew ? null : (this.left.get(location.hash) ?? null);
    this.isNew = false;
  }

  // When the rows of the address are there.
  restore() {
    if (this.wanted !== null) window.scrollTo(0, this.wanted);
    this.wanted = null;
  }
}
export const scroll = new Scroll();

export const here = () => parse(location.hash);
export const go = (path, query) => {
  scroll.open(address(path, query));
  location.hash = address(path, query);
};
// Without an entry in the browser's history.
export const replace = (path, query) => {
  scroll.open(address(path, query));
  location.replace(address(path, query));
};

// An attribute `href` that can be opened in another tab: within Airflow, where it shows this page.
const outside = (hash) => (around ? `${around.location.origin}${around.location.pathname}${hash}` : hash);
const follow = (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const { hash } = new URL(event.currentTarget.href);
  scroll.open(hash);
  if (!around) return;
  event.preventDefault();
  location.hash = hash;
};
export const linkTo = (path, query) => ({ href: outside(address(path, query)), onclick: follow });

export const retarget = (link, path, query) => {
  const href = outside(address(path, query));
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
};

const mirror = () => {
  const { pathname, search, hash } = around.location;
  // Airflow's router keeps its own data in the state of the entry.
  if (hash !== location.hash) around.history.replaceState(around.history.state, "", pathname + search + location.hash);
};

// onChange: called at each new address.
export const start = (onChange) => {
  window.addEventListener("hashchange", () => {
    if (around) mirror();
    onChange();
  });
  if (!around) return;
  if (around.location.hash.startsWith("#/") && around.location.hash !== location.hash) location.replace(around.location.hash);
  const typed = () => around.location.hash !== location.hash && location.replace(around.location.hash || "#/");
  around.addEventListener("hashchange", typed);
  window.addEventListener("pagehide", () => around.removeEventListener("hashchange", typed));
};
