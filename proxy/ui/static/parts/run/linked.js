// Joins the conversation of a run with its timeline: what is pointed at, chosen or focused here is marked there.

/** Cards register by `card(element, id)`, the timeline by `line(timeline)`. */
export function linked() {
  const cards = new Map();
  let line = null;
  let chosen = null;

  const light = (id) => {
    for (const [name, element] of cards) element.classList.toggle("lit", name === id);
    line?.light(id);
  };
  const mark = (id) => {
    chosen = id;
    for (const [name, element] of cards) element.classList.toggle("on", name === id);
  };
  const reveal = (element) => {
    for (let up = element.parentElement?.closest("details"); up; up = up.parentElement?.closest("details"))
      up.open = true;
    if (element.tagName === "DETAILS") element.open = true;
    element.scrollIntoView({
      block: "nearest",
      behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
    });
  };

  return {
    light,
    chosen: () => chosen,
    line: (made) => (line = made),
    card(element, id) {
      cards.set(id, element);
      element.classList.toggle("on", id === chosen);
      const own = (event) => event.target.closest("[data-linked]") === element;
      element.dataset.linked = id;
      element.addEventListener("pointerover", (event) => own(event) && light(id));
      element.addEventListener("pointerout", (event) => own(event) && light(null));
      element.addEventListener("focusin", (event) => own(event) && light(id));
      element.addEventListener("focusout", () => light(null));
      element.addEventListener("click", (event) => {
        if (!own(event) || event.target.closest("a, button, input, textarea, select, pre")) return;
        mark(id);
        line?.choose(id);
      });
    },
    /** A row of the timeline was chosen, or none. */
    fromLine(id) {
      mark(id);
      if (id && cards.get(id)?.isConnected) reveal(cards.get(id));
    },
    /** Choose a turn or call, and bring it into view. */
    go(id) {
      if (!cards.has(id)) return;
      mark(id);
      line?.choose(id);
      reveal(cards.get(id));
    },
    /** Move the focus to the next or the previous turn or call. */
    step(by) {
      const all = [...cards.values()].filter((one) => one.isConnected && one.getClientRects().length);
      all.sort((a, b) => (a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
      const at = all.indexOf(document.activeElement?.closest("[data-linked]"));
      const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
      (next?.querySelector(":scope > summary") ?? next)?.focus();
      next?.scrollIntoView({ block: "nearest" });
    },
    /** Draw again, and open and focus what was open and focused. */
    redraw(box, draw) {
      const open = new Map([...box.querySelectorAll("details[data-id]")].map((one) => [one.dataset.id, one.open]));
      const focused = document.activeElement?.closest("[data-linked], tr[data-id]");
      const row = focused?.tagName === "TR" ? focused.dataset.id : null;
      const card = row ? null : focused?.dataset.linked;
      cards.clear();
      draw();
      for (const one of box.querySelectorAll("details[data-id]"))
        if (open.has(one.dataset.id)) one.open = open.get(one.dataset.id);
      if (row) line?.focus(row);
      const again = card && cards.get(card);
      if (again) (again.querySelector(":scope > summary") ?? again).focus({ preventScroll: true });
    },
  };
}
