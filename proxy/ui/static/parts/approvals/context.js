// Why a call is asked about: what the user wanted, and what the model said last.
import { api } from "../../core/api.js";
import { h, set } from "../../core/dom.js";
import { longText } from "../json.js";
import { toolName } from "../badges.js";

const LONG = 1200;
const MOST = 3;
const known = new Map();

/** The conversation of a run, read once for all its calls. */
function conversation(id) {
  if (!known.has(id)) {
    if (known.size > 200) known.clear();
    known.set(
      id,
      api(`runs/${id}/conversation`).catch((error) => {
        known.delete(id); // The next card, or Try again, asks anew.
        return { error };
      }),
    );
  }
  return known.get(id);
}

const textOf = (one) =>
  one.parts
    .filter((part) => part.kind === "text")
    .map((part) => part.text)
    .join("\n\n");

/** What stands above the arguments; it is filled when the conversation has been read. */
export function context(row) {
  const box = h("div.context", { "aria-label": "What led to this call", role: "group" });
  const show = async () => {
    const read = await conversation(row.run_id);
    if (read?.error)
      return set(
        box,
        h(
          "p.muted.small",
          `What led to this call could not be read: ${read.error.message} `,
          h("button.btn.small", { type: "button", onclick: show }, "Try again"),
        ),
      );
    const messages = read?.messages ?? [];
    const at = messages.findLastIndex((one) => one.turn === 0 && one.role === "user" && textOf(one));
    if (at < 0) return set(box, h("p.muted.small", "What the user asked was not kept."));
    const later = messages
      .slice(at + 1)
      .filter((one) => one.role === "assistant")
      .slice(-MOST);
    set(
      box,
      h("p.small.muted", row.caller_name ? `${row.caller_name} asked` : "Asked"),
      h("blockquote", longText(textOf(messages[at]), LONG)),
      later.map((one) => [
        textOf(one) && h("p", h("span.small.muted", "The model: "), h("span.isolate", textOf(one).slice(0, LONG))),
        calls(one, row),
      ]),
    );
  };
  if (row.run_id) show();
  return box;
}

/** The calls that ran before this one. */
function calls(one, row) {
  const names = one.parts.filter((part) => part.kind === "call" && part.invocation).map((part) => toolName(part.name));
  return (
    names.length > 0 && h("p.small.muted", `Before ${toolName(row.tool ?? "this call")} it called `, names.join(", "))
  );
}
