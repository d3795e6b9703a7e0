// The start: a code in the address, an existing session, or the sign-in.
import { api, whenSignedOut } from "./api.js";
import { set } from "./dom.js";
import { stop } from "./live.js";
import { frame } from "./shell.js";
import { signIn } from "./signin.js";
import { failure } from "../parts/page.js";

const app = document.getElementById("app");
let asked = false;
const code = /^#login=([A-Za-z0-9_.~-]{8,200})$/.exec(location.hash)?.[1];
if (location.hash) history.replaceState(null, "", location.pathname + location.search);

const enter = (session) => {
  asked = false;
  return frame(app, session, () => location.reload());
};

function ask(message) {
  document.title = "Sign in · toolrelay";
  stop();
  signIn(app, message, enter);
}

whenSignedOut(() => {
  if (asked) return;
  asked = true;
  ask("Your session has ended. Sign in to continue where you were.");
});

try {
  if (code) await api("session", { method: "POST", body: { code }, quiet: true });
  await enter(await api("session", { quiet: true }));
} catch (error) {
  if (error.status === 401 || error.status === 403 || error.status === 429) {
    asked = true;
    const expected = error.code === "not_signed_in";
    ask(
      expected
        ? ""
        : code && error.status === 401
          ? "This link has been used or has expired. Run “toolrelay ui” for a new one."
          : error.message,
    );
  } else
    set(
      app,
      failure(error, () => location.reload()),
    );
}
