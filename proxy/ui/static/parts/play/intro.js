// What stands in an empty playground.
import { h } from "../../core/dom.js";
import { icon } from "../../core/icons.js";

/** `ask(question)` sends one of the questions: a `text`, and the `path` and `further` fields that it needs. */
export function intro(session, ask) {
  const questions = session.demo?.questions ?? [
    { text: "What time is it in Lisbon?" },
    { text: "What is the weather in Berlin?" },
  ];
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
      questions.map((one) =>
        h(
          "button.btn",
          {
            type: "button",
            onclick: () => ask(one),
          },
          h("span", one.text),
          one.about && h("small.muted", one.about),
        ),
      ),
    ),
  );
}
