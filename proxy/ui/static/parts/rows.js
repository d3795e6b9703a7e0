// A list that draws only the visible rows, so that thousands cost no more than thirty.
import { h, set } from "../core/dom.js";

const SPARE = 6;

/** `draw(item)` makes a row's cells; `height()` is that of each row in pixels; `more()` is called near the end. */
export function rows({ label, head, draw, height, more, open }) {
  const inner = h("div", { role: "rowgroup", style: { position: "relative" } });
  const scroll = h("div.scroll", inner);
  const table = h(
    "div.list.card",
    { role: "table", "aria-label": label, tabindex: -1 },
    h("div.head", { role: "rowgroup" }, head),
    scroll,
  );
  const shown = new Map();
  let items = [];
  let tall = height();
  let chosen = null;
  let asked = false;

  function paint() {
    asked = false;
    const from = Math.max(0, Math.floor(scroll.scrollTop / tall) - SPARE);
    const to = Math.min(items.length, Math.ceil((scroll.scrollTop + scroll.clientHeight) / tall) + SPARE);
    const wanted = new Set();
    for (let at = from; at < to; at++) wanted.add(items[at].id);
    for (const [id, row] of shown) if (!wanted.has(id)) drop(id, row);
    let before = null;
    for (let at = from; at < to; at++) {
      const item = items[at];
      let row = shown.get(item.id);
      if (!row) {
        row = { element: h("div.item", { role: "row" }), item: null };
        shown.set(item.id, row);
      }
      if (row.item !== item) {
        const focused = row.element.contains(document.activeElement);
        set(row.element, draw(item));
        row.item = item;
        if (focused) row.element.querySelector("a")?.focus({ preventScroll: true });
      }
      row.element.style.transform = `translateY(${at * tall}px)`;
      row.element.setAttribute("aria-rowindex", at + 2);
      // In list order, for Tab and screen readers.
      const next = before ? before.nextSibling : inner.firstChild;
      if (next !== row.element) inner.insertBefore(row.element, next);
      before = row.element;
    }
    if (more && items.length && to > items.length - 15) more();
  }

  function drop(id, row) {
    if (row.element.contains(document.activeElement)) table.focus({ preventScroll: true });
    row.element.remove();
    shown.delete(id);
  }

  const soon = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(paint);
  };

  function measure() {
    const now = height();
    if (now !== tall) {
      const top = scroll.scrollTop / tall;
      tall = now;
      inner.style.height = `${items.length * tall}px`;
      scroll.scrollTop = top * tall;
    }
    soon();
  }

  scroll.addEventListener("scroll", soon, { passive: true });
  const observer = new ResizeObserver(measure);
  observer.observe(scroll);

  return {
    element: table,
    scroll,
    destroy: () => observer.disconnect(),
    /** Replace the items; the visible rows stay in place if `added` items are new at the top. */
    put(next, added = 0) {
      const top = scroll.scrollTop;
      items = next;
      inner.style.height = `${items.length * tall}px`;
      table.setAttribute("aria-rowcount", items.length + 1);
      if (added && top > tall / 2) scroll.scrollTop = top + added * tall;
      paint();
    },
    fresh(id) {
      const row = shown.get(id);
      if (row) {
        row.element.classList.add("fresh");
        setTimeout(() => row.element.classList.remove("fresh"), 1500);
      }
    },
    /** Focus the next or the previous row. */
    move(step) {
      if (!items.length) return;
      const focused = [...shown].find(([, row]) => row.element.contains(document.activeElement))?.[0] ?? chosen;
      const at = Math.min(items.length - 1, Math.max(0, items.findIndex((item) => item.id === focused) + step));
      chosen = items[at].id;
      const top = at * tall;
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      else if (top + tall > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + tall - scroll.clientHeight;
      paint();
      shown.get(chosen)?.element.querySelector("a")?.focus({ preventScroll: true });
    },
    open: () => chosen && open?.(chosen),
  };
}
