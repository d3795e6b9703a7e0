// The JSON API below /ui/api.  The browser sends the cookie; writes have a header that no page of another origin can
// send.

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answered ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
    this.param = error?.param ?? null;
    this.body = null;
  }
}

const BASE = "/ui/api/";
let onSignedOut = () => {};

/** Set what happens when the session has ended. */
export const whenSignedOut = (act) => (onSignedOut = act);

/** The response's JSON.  Throws ApiError, or DOMException AbortError if `signal` fires. */
export async function api(path, { method = "GET", body, signal, quiet = false } = {}) {
  const write = method !== "GET";
  let response;
  try {
    response = await fetch(BASE + path, {
      method,
      signal,
      credentials: "same-origin",
      headers: {
        Accept: "application/json",
        ...(write && { "x-toolrelay-ui": "1" }),
        ...(body && { "Content-Type": "application/json" }),
      },
      body: body && JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, {
      message: "The server cannot be reached. Is toolrelay still running?",
      code: "unreachable",
    });
  }
  if (response.status === 204) return null;
  const type = response.headers.get("content-type") ?? "";
  const json = type.includes("json") ? await response.json().catch(() => null) : null;
  if (!response.ok) {
    const error = new ApiError(response.status, json?.error);
    error.body = json;
    if (error.code === "not_signed_in" && !quiet) onSignedOut();
    throw error;
  }
  return json;
}

/** A query string of the values that are set. */
export function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values))
    if (value !== "" && value !== null && value !== undefined && value !== false) found.set(name, value);
  const text = found.toString();
  return text && `?${text}`;
}
