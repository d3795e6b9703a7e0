// What stands in an empty playground.
import { h } from "../../core/dom.js";
import { icon } from "../../core/icons.js";

/** `ask(question)` sends one of the questions. */
export function intro(session, ask) {
  const questions = [session.demo?.question, ...(session.demo?.questions ?? [])].filter(
    (one, at, all) => one && all.indexOf(one) === at,
  );
  return h(
    "div.empty",
    icon("spark"),
    h("h2", "A client that knows nothing about tools"),
    h(
      "p",
      "It sends one streaming request and shows the text. The badges show the tool calls that the proxy ",
      "reports in the stream, because the request has ",
      h("code", "x-toolrelay-trace: events"),
      ".",
    ),
    h(
      "div.suggest",
      (questions.length ? questions : ["What time is it in Lisbon?", "What is the weather in Berlin?"]).map((one) =>
        h(
          "button.btn",
          {
            type: "button",
            onclick: () => ask(one),
          },
          one,
        ),
      ),
    ),
  );
}
