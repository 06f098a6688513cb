"""Checks of the layout of the page."""

from __future__ import annotations

# JavaScript: visible controls and texts within a node that are cut at its edge or overlap.
OVERLAPS = """root => {
  const visible = [...root.querySelectorAll("button, input, summary, a, h1, h2, dt, dd, p, .pill")]
    .filter(n => n.checkVisibility() && n.getClientRects().length);
  const name = n => `${n.tagName} ${(n.ariaLabel || n.textContent || n.id).trim().slice(0, 40)}`;
  const problems = [];
  for (const [i, a] of visible.entries()) {
    const p = a.getBoundingClientRect();
    if (root.tagName == "DIALOG" && (p.left < -0.5 || p.right > innerWidth + 0.5)) problems.push(`${name(a)} is cut`);
    for (const b of visible.slice(i + 1)) {
      const q = b.getBoundingClientRect();
      const over = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (over > 1 && down > 1 && !a.contains(b) && !b.contains(a)) problems.push(`${name(a)} on ${name(b)}`);
    }
  }
  return problems;
}"""
