// The form of an approval with conditions: other arguments, and which later calls run without asking.
import { api } from "../../core/api.js";
import { h, set, unique } from "../../core/dom.js";
import { icon } from "../../core/icons.js";

const LATER = [
  ["", "Ask each time"],
  ["15m", "Run for 15 minutes"],
  ["1h", "Run for 1 hour"],
  ["1d", "Run for 1 day"],
  ["here", "Run in this conversation"],
];
const SECONDS = { "15m": 900, "1h": 3600, "1d": 86400 };
const HIDDEN =
  /[\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\ud800-\udfff]/g;

/** JSON to edit: what cannot be seen, or changes the direction of text, is escaped. */
const editable = (value) =>
  JSON.stringify(value, null, 2).replace(HIDDEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** A form that calls `approve(body)`, whose errors it shows at their fields, and `back()` if it is left. */
export async function approveForm(row, rules, { approve, back }) {
  // What runs is what is edited, with the tool's private fields; the log says who read it.
  const whole = rules.edit ? (await api(`approvals/${row.id}?content=true`)).arguments : null;
  const before = rules.edit ? editable(whole) : "";
  const fields = {};
  const labelled = (name, text, control, hint) => {
    const id = unique("approve");
    const trouble = h("small.trouble", { id: `${id}-trouble`, role: "alert" });
    control.id = id;
    control.setAttribute("aria-describedby", `${id}-hint ${id}-trouble`);
    fields[name] = { control, trouble };
    return h("div.field", h("label", { for: id }, text), control, h("small", { id: `${id}-hint` }, hint), trouble);
  };
  const edited = h("textarea.input.mono", {
    rows: Math.min(14, before.split("\n").length + 1),
    spellcheck: "false",
    value: before,
  });
  const later = h(
    "select.input",
    { onchange: () => (limits.hidden = !later.value) },
    LATER.filter(([value]) => !SECONDS[value] || SECONDS[value] <= rules.max_grant_s).map(([value, text]) =>
      h("option", { value }, text),
    ),
  );
  const bounds = h("textarea.input.mono", { rows: 3, spellcheck: "false", placeholder: '{"amount": {"max": 100}}' });
  const limits = labelled(
    "grant.arguments",
    "Limits of later arguments, as JSON (optional)",
    bounds,
    "As in policy.arguments: enum, min, max, max_length, pattern, required, forbidden. Empty: any arguments.",
  );
  limits.hidden = true;
  const general = h("p.trouble", { role: "alert" });
  const submit = h("button.btn.yes", { type: "submit" }, icon("check"), "Approve");

  const read = (name, text) => {
    let value = null;
    try {
      value = JSON.parse(text);
    } catch (error) {
      throw new FieldError(name, `This is not JSON: ${error.message}.`);
    }
    if (value === null || typeof value !== "object" || Array.isArray(value))
      throw new FieldError(name, "This must be a JSON object: {…}.");
    return value;
  };
  const body = () => {
    const said = { approve: true };
    if (rules.edit && edited.value !== before) said.arguments = read("arguments", edited.value);
    if (later.value) {
      said.grant = later.value === "here" ? { conversation: true } : { for: later.value };
      if (bounds.value.trim()) said.grant.arguments = read("grant.arguments", bounds.value);
    }
    return said;
  };
  const tell = (name, message) => {
    const known = Object.keys(fields).find((one) => name === one || name?.startsWith(`${one}.`));
    if (!known) return set(general, message);
    set(fields[known].trouble, message);
    fields[known].control.setAttribute("aria-invalid", "true");
    fields[known].control.focus();
  };

  return h(
    "form.conditions",
    {
      "aria-label": `Approve ${row.tool} with conditions`,
      onsubmit: async (event) => {
        event.preventDefault();
        set(general);
        for (const { control, trouble } of Object.values(fields)) {
          set(trouble);
          control.removeAttribute("aria-invalid");
        }
        submit.disabled = true;
        try {
          await approve(body());
        } catch (error) {
          tell(error.field ?? error.param, error.message);
        }
        submit.disabled = false;
      },
    },
    rules.edit &&
      labelled(
        "arguments",
        "Arguments that run, as JSON",
        edited,
        "They replace the model’s; the model is told. The tool’s own checks and the policy hold for them.",
      ),
    rules.max_grant_s > 0 &&
      labelled(
        "grant",
        "Later calls of this tool by this caller",
        later,
        "Other callers, other definitions of the tool and other reasons to ask are not covered.",
      ),
    rules.max_grant_s > 0 && limits,
    general,
    h("div.buttons", submit, h("button.btn.ghost", { type: "button", onclick: back }, "Back")),
  );
}
