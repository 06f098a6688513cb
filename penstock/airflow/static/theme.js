// Uses Airflow's theme if the page is shown inside it, else the system's. Runs before the first paint.
(() => {
  const root = document.documentElement;
  let outer = null;
  try {
    outer = window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    outer = null; // a page of another origin has no readable theme
  }
  const apply = () => {
    const named = outer && ["dark", "light"].find((name) => outer.classList.contains(name));
    if (named) root.dataset.theme = named;
    else delete root.dataset.theme;
    window.dispatchEvent(new Event("themechange"));
  };
  apply();
  if (outer) new MutationObserver(apply).observe(outer, { attributes: true, attributeFilter: ["class"] });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
})();
