// Why a call is asked about: what the user wanted, and what the model said last.
import { api } from "../../core/api.js";
import { h, set } from "../../core/dom.js";
import { longText } from "../json.js";
import { toolName } from "../badges.js";

const LONG = 1200;
const known = new Map();

/** What led to an approval's call, read once. */
function ledTo(id) {
  if (!known.has(id)) {
    if (known.size > 200) known.clear();
    known.set(
      id,
      api(`approvals/${id}/context`).catch((error) => {
        known.delete(id); // The next card, or Try again, asks anew.
        return { error };
      }),
    );
  }
  return known.get(id);
}

/** What stands above the arguments; it is filled when it has been read. */
export function context(row, id) {
  const box = h("div.context", { "aria-label": "What led to this call", role: "group" });
  const show = async () => {
    const read = await ledTo(id);
    if (read.error)
      return set(
        box,
        h(
          "p.muted.small",
          `What led to this call could not be read: ${read.error.message} `,
          h("button.btn.small", { type: "button", onclick: show }, "Try again"),
        ),
      );
    if (!read.question) return set(box, h("p.muted.small", "What the user asked was not kept."));
    set(
      box,
      h("p.small.muted", row.caller_name ? `${row.caller_name} asked` : "Asked"),
      h("blockquote", longText(read.question, LONG)),
      read.turns.map((turn) => [
        turn.text && h("p", h("span.small.muted", "The model: "), h("span.isolate", turn.text.slice(0, LONG))),
        turn.calls.length > 0 &&
          h(
            "p.small.muted",
            `Before ${toolName(row.tool ?? "this call")} it called `,
            turn.calls.map(toolName).join(", "),
          ),
      ]),
    );
  };
  show();
  return box;
}
