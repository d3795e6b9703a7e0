// What went wrong: in the words of the upstream or the tool, what it means, what to do, and the page about it.
import { h } from "../../core/dom.js";
import { icon } from "../../core/icons.js";
import { longText } from "../json.js";
import { inline } from "./inline.js";

/** `help` is what the server says about the code; `message` is in the words of whoever failed. */
export function failure({ title, code, message, help, by }) {
  const page = help?.page ?? "/docs/errors";
  const about = /\/errors\/./.test(page) ? `About ${code}` : "About errors";
  return h(
    "div.failure",
    { role: "group", "aria-label": title },
    h("p.row.wrap", icon("alert"), h("strong", title), code && h("code", code)),
    message && h("div.col.words", h("span.small.muted", by ?? "In its own words"), longText(message, 4000)),
    help?.when && h("p", inline(help.when)),
    help?.remedy && h("p", h("strong", "What to do: "), inline(help.remedy)),
    h("p", h("a.page", { href: page, target: "_blank", rel: "noopener" }, about)),
  );
}
