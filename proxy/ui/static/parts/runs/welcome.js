// The list of runs before the first run: what to do to see one.
import { h, toast } from "../../core/dom.js";
import { icon } from "../../core/icons.js";
import { liveState } from "../../core/live.js";
import { reload } from "../../core/router.js";
import { code } from "../page.js";

/** Ask the demo's question as the playground does; its run appears in the list. */
async function ask(session, button) {
  button.disabled = true;
  try {
    const { streamPlay } = await import("../../client/dialects.js");
    await streamPlay(
      "chat",
      { model: session.demo.model, messages: [{ role: "user", content: session.demo.question }] },
      {},
      () => {},
    );
    if (liveState() !== "on") await reload();
  } catch (error) {
    toast(error.message);
  } finally {
    button.disabled = false;
  }
}

/** A button that asks the demo's question. */
export function askDemo(session, main = false) {
  const button = h(
    "button.btn",
    { type: "button", class: main ? "main" : "", onclick: () => ask(session, button) },
    icon("spark"),
    "Ask the demo question",
  );
  return button;
}

/** What stands in place of an empty list. */
export function welcome(session) {
  const base = `${location.origin}/v1`;
  const model = session.demo?.model ?? "gpt-4o-mini";
  const question = session.demo?.question ?? "What time is it in Lisbon?";
  const body = JSON.stringify({ model, stream: true, messages: [{ role: "user", content: question }] });
  const text = [
    `curl -N ${base}/chat/completions`,
    "-H 'content-type: application/json'",
    ...(session.demo ? [] : ['-H "authorization: Bearer $TOOLRELAY_API_KEY"']),
    `-d '${body}'`,
  ].join(" \\\n  ");
  return h(
    "div.card.hello",
    h(
      "div.col",
      { style: { gap: "1rem" } },
      h("h2", session.demo ? "The first tool call is one click away" : "No run yet"),
      h(
        "p",
        session.demo
          ? [
              "Ask: “",
              h("span.isolate", session.demo.question),
              "” The model calls two tools, toolrelay runs them, and the client sees one stream.",
            ]
          : [
              "Point any OpenAI client at ",
              h("code", base),
              ". Each request in which tools are offered appears here as it happens.",
            ],
      ),
      h(
        "div.row.wrap",
        session.demo
          ? askDemo(session, true)
          : h("a.btn.main", { href: "/ui/play" }, icon("play"), "Open the playground"),
        session.demo && h("a.btn", { href: "/ui/play" }, icon("play"), "Open the playground"),
      ),
    ),
    code(text, "curl command"),
  );
}
