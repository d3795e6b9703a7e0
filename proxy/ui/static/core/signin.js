// The sign-in: at the OpenID provider if there is one, or with a key, which the browser does not keep.
import { api } from "./api.js";
import { h, set } from "./dom.js";
import { icon, mark } from "./icons.js";

/** Show the form; `enter(session)` goes on. */
export function signIn(app, message, enter) {
  const field = h("input.input.mono", {
    type: "password",
    name: "key",
    id: "key",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    placeholder: "tr_…",
    "aria-describedby": "trouble",
  });
  const trouble = h(
    "p.note.bad",
    { id: "trouble", role: "alert", hidden: !message },
    icon("alert"),
    h("span", message),
  );
  const button = h("button.btn.main", { type: "submit" }, "Sign in");
  const tell = (text) => {
    trouble.hidden = false;
    set(trouble.lastChild, text);
  };
  const provider = h("div", { hidden: true });
  api("login", { quiet: true })
    .then((login) => login?.address && offer(provider, login))
    .catch(() => {});
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const session = await api("session", { method: "POST", body: { key: field.value.trim() }, quiet: true });
      field.value = "";
      await enter(session);
    } catch (error) {
      tell(error.message);
      field.focus();
    } finally {
      button.disabled = false;
    }
  };
  set(
    app,
    h(
      "main.alone",
      { id: "main" },
      h(
        "div.sign-in",
        h(
          "div.row",
          mark(),
          h(
            "div",
            h("h1", "Sign in to toolrelay"),
            h("p.muted", "See every run, both sides of the wire, and pending approvals."),
          ),
        ),
        h(
          "div.card",
          trouble,
          provider,
          h(
            "form",
            { onsubmit: submit },
            h("label.field", { for: "key" }, h("span", "Administrator’s or approver’s key"), field),
            button,
          ),
        ),
        h(
          "div.col",
          h("h2.soft", "Or without a key"),
          h("p.muted", "On the server’s machine, this command prints a link that signs you in once:"),
          h("pre.code", "toolrelay ui"),
          h("p.muted.small", "No key yet? ", h("code", "toolrelay keys create NAME --admin"), " makes one."),
        ),
      ),
    ),
  );
  field.focus();
}

/** Offer the login at the provider, which returns to the page that is open now. */
function offer(box, login) {
  const then = encodeURIComponent(location.pathname + location.search);
  const button = h(
    "button.btn.main",
    { type: "button", onclick: () => location.assign(`${login.address}?then=${then}`) },
    `Sign in with ${login.provider}`,
  );
  set(box, button, h("p.muted.small", "or"));
  box.hidden = false;
  button.focus();
}
