// A modal dialog of the browser's own: focus goes in, stays in, and comes back.
import { h, unique } from "../core/dom.js";
import { icon } from "../core/icons.js";

/** Open a dialog; gives the function that closes it. */
export function dialog(title, ...body) {
  const id = unique("dialog");
  const box = h("dialog", {
    "aria-labelledby": id,
    onclick: (event) => event.target === box && box.close(),
    onclose: () => box.remove(),
  });
  box.append(
    h(
      "div.dialog-head",
      h("h2", { id }, title),
      h(
        "button.btn.ghost.icon-only",
        { type: "button", "aria-label": "Close", onclick: () => box.close() },
        icon("cross"),
      ),
    ),
    h("div.dialog-body", body),
  );
  document.body.append(box);
  box.showModal();
  return () => box.close();
}
