// Asks the server to keep the bytes of the next runs.
import { api } from "../../core/api.js";
import { h, set, toast } from "../../core/dom.js";
import { dialog } from "../dialog.js";
import { note } from "../page.js";

/** Ask to capture the bytes of the next runs. */
export function capture(session) {
  if (session.capture && !session.capture.allowed)
    return dialog("Capture", note("info", session.capture.reason ?? "Capturing is off."));
  const key = h("input.input", { placeholder: "every key", spellcheck: "false" });
  const runs = h("input.input", { type: "number", min: 1, max: 100, value: 20 });
  const minutes = h("input.input", { type: "number", min: 1, max: 60, value: 15 });
  const trouble = h("div");
  const close = dialog(
    "Capture the next runs",
    h(
      "p.muted",
      "The bytes of both sides are kept like other content: encrypted, limited in size, and deleted after a while. ",
      "Secrets in headers are never kept.",
    ),
    h(
      "form.col",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          try {
            await api("capture", {
              method: "POST",
              body: { key: key.value.trim() || null, runs: Number(runs.value), minutes: Number(minutes.value) },
            });
            close();
            toast(`The next ${runs.value} runs will be captured.`);
          } catch (error) {
            set(trouble, note("bad", error.message));
          }
        },
      },
      h("label.field", h("span", "Key (its name)"), key),
      h(
        "div.row",
        h("label.field.grow", h("span", "Runs"), runs),
        h("label.field.grow", h("span", "Minutes"), minutes),
      ),
      trouble,
      h("button.btn.main", { type: "submit" }, "Start"),
    ),
  );
}
