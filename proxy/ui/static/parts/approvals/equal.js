// Calls that ask for the same thing: one tool, one caller, the same arguments.
import { h } from "../../core/dom.js";
import { count } from "../../core/format.js";
import { toolName } from "../badges.js";

/** The cards of equal calls; `card(row, equal)` makes one of them. */
export function equalCards(rows, card) {
  const together = h("input", {
    type: "checkbox",
    onchange: () => cards.forEach((one) => one.dispatchEvent(new CustomEvent("toolrelay:equal"))),
  });
  const waiting = () => cards.filter((one) => !one.classList.contains("decided")).map((one) => one.dataset.id);
  const equal = () => (together.checked ? waiting() : []);
  const cards = [];
  cards.push(...rows.map((row) => card(row, equal)));
  const others = h(
    "details.folded",
    h("summary", h("span", `Show the other ${rows.length - 1}`)),
    h("div.body.col", cards.slice(1)),
  );
  const name = toolName(rows[0].tool);
  return h(
    "section.card.equal",
    { "aria-label": `${count(rows.length, "equal call")} of ${name}` },
    h(
      "header",
      h("h2", `${rows.length} equal calls of `, h("span.isolate", name)),
      h("label.check", together, `Decide all ${rows.length} together`),
    ),
    h("div.body.col", cards[0], others),
  );
}
