// What two runs were asked, and what each answered.
import { api } from "../../core/api.js";
import { h, set } from "../../core/dom.js";
import { note } from "../page.js";
import { byWord } from "./words.js";

const spoken = (one) =>
  one.parts
    .filter((part) => part.kind === "text")
    .map((part) => part.text)
    .join("\n\n");

/** The last text of the client and of the model, or the message of the failure. */
function textsOf(read) {
  const { messages, failure } = read;
  const last = (fits) => messages.filter(fits).map(spoken).filter(Boolean).at(-1) ?? "";
  return {
    question: last((one) => one.turn === 0 && one.role === "user"),
    answer: failure ?? last((one) => one.turn > 0 && one.role === "assistant"),
  };
}

/** The answers side by side; they are read when the page is shown. */
export function answers(a, b, signal) {
  const body = h("div.body.col", h("div.skeleton"));
  const show = async () => {
    try {
      const read = await Promise.all([a, b].map((id) => api(`runs/${id}/conversation`, { signal })));
      const [left, right] = read.map(textsOf);
      const [first, second] = byWord(left.answer, right.answer);
      const same = left.question === right.question;
      const asked = same
        ? left.question && h("blockquote.asked", left.question)
        : h(
            "div.diff",
            [left, right].map((one) => h("blockquote.asked", one.question || "not kept")),
          );
      const half = (name, one, parts) =>
        h("div.col", h("h3", name), one.answer ? h("div.stranger", parts) : h("p.muted", "No answer was kept."));
      const verdict = left.answer && left.answer === right.answer && h("p.soft", "Both answers are the same.");
      set(body, asked, h("div.diff", half("A", left, first), half("B", right, second)), verdict);
    } catch (error) {
      if (error.name !== "AbortError") set(body, note("bad", error.message));
    }
  };
  show();
  return h("section.card", { "aria-label": "Answers" }, h("header", h("h2", "Answers")), body);
}
