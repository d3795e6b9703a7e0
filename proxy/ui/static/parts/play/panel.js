// What the playground's request asks for besides the messages.
import { h, toast } from "../../core/dom.js";
import { icon } from "../../core/icons.js";
import { remember } from "../../core/router.js";
import { DIALECTS, bodyOf } from "../../client/dialects.js";
import { programs } from "../compare/programs.js";
import { dialog } from "../dialog.js";
import { code, tabs } from "../page.js";
import { toolChoice } from "./tools.js";

/**
 * The form as `node`; it writes into `options`.  `messages()` are those that would be sent.  `put(name, value)` fills
 * in a field as a person would.
 */
export function requestPanel(options, models, messages) {
  const fields = {};
  const bind = (name, element) => {
    fields[name] = element;
    element.addEventListener("input", () => {
      options[name] = element.value;
      if (name === "model" || name === "dialect")
        remember(`?dialect=${options.dialect}&model=${encodeURIComponent(options.model)}`);
    });
    return element;
  };
  const known = [...new Set([options.model, ...models].filter((one) => one && !one.includes("*")))];
  const model = h("input.input.mono", {
    value: options.model,
    list: "play-models",
    spellcheck: "false",
    autocomplete: "off",
  });
  const node = h(
    "section.card.options",
    { "aria-label": "Request" },
    h(
      "label.field",
      h("span", "Dialect"),
      bind(
        "dialect",
        h(
          "select.input",
          Object.entries(DIALECTS).map(([id, one]) =>
            h("option", { value: id, selected: id === options.dialect }, one.name),
          ),
        ),
      ),
    ),
    h(
      "label.field",
      h("span", "Model"),
      bind("model", model),
      h(
        "datalist",
        { id: "play-models" },
        known.map((one) => h("option", { value: one })),
      ),
    ),
    h("label.field", h("span", "System prompt"), bind("system", h("textarea.input", { rows: 3 }))),
    h(
      "div.row",
      h(
        "label.field.grow",
        h("span", "Max tokens"),
        bind("max_tokens", h("input.input", { type: "number", min: 1, placeholder: "default" })),
      ),
      h(
        "label.field.grow",
        h("span", "Temperature"),
        bind("temperature", h("input.input", { type: "number", min: 0, max: 2, step: 0.1, placeholder: "default" })),
      ),
    ),
    toolChoice((names) => (options.tools = names)),
    h(
      "label.field",
      h("span", "Further fields, as JSON"),
      bind("further", h("textarea.input.mono", { rows: 2, placeholder: "{}", spellcheck: "false" })),
    ),
    h(
      "button.btn",
      { type: "button", onclick: () => showRequest(options, messages()) },
      icon("copy"),
      "The request as curl, Python, Node",
    ),
    h(
      "p.small.muted",
      "Requests are sent as the caller ",
      h("code", "ui"),
      ", with the rights in ",
      h("code", "ui.playground_*"),
      ". The conversation stays in this tab.",
    ),
  );
  const put = (name, value) => {
    fields[name].value = value;
    fields[name].dispatchEvent(new Event("input"));
  };
  return { node, put };
}

/** What the playground asks for; throws SyntaxError if the further fields are no JSON object. */
export function asked(options, messages) {
  const further = options.further.trim() ? JSON.parse(options.further) : {};
  return {
    ...further,
    model: options.model,
    messages,
    system: options.system.trim(),
    ...(options.max_tokens && { max_tokens: Number(options.max_tokens) }),
    ...(options.temperature !== "" && { temperature: Number(options.temperature) }),
  };
}

/** The request as programs that send it. */
function showRequest(options, messages) {
  let body;
  try {
    body = bodyOf(options.dialect, asked(options, messages));
  } catch {
    return toast("Further fields must be a JSON object.");
  }
  const way = DIALECTS[options.dialect];
  const headers = {
    ...way.headers,
    "x-toolrelay-trace": "events",
    ...(options.tools && { "x-toolrelay-tools": options.tools }),
  };
  const list = programs(`${location.origin}/${way.path}`, headers, body);
  dialog(
    "The request as a program",
    tabs(
      "Languages",
      list.map(([name, text]) => [name, name, () => code(text, `${name} ${name === "curl" ? "command" : "program"}`)]),
    ),
  );
}
