// Reads a streamed answer of any dialect as plain events:
//   for await (const event of readAnswer(response)) …
// {type: "text", text} · {type: "tool_call" | "tool_progress" | "tool_result", call_id, name, …} · {type: "error", message}
// Tools are told where the request had `x-toolrelay-trace: events`.  Show every text as text, never as markup.
export async function* readAnswer(response) {
  if (!response.ok) {
    const { error } = await response.json().catch(() => ({}));
    yield { type: "error", message: error?.message ?? String(error ?? `status ${response.status}`) };
    return;
  }
  for await (const data of messages(response.body)) {
    yield* [data.x_toolrelay ?? []].flat();
    const item = data.item;
    if (item?.type === "mcp_call") {
      const done = data.type === "response.output_item.done";
      yield { type: done ? "tool_result" : "tool_call", call_id: item.id, name: item.name, status: done ? (item.error ? "failed" : "completed") : "in_progress" };
    }
    const error = data.error ?? data.response?.error;
    if (error) yield { type: "error", message: error.message ?? String(error) };
    const text =
      data.choices?.[0]?.delta?.content ?? // Chat
      (data.type === "response.output_text.delta" ? data.delta : null) ?? // Responses
      (data.type === "content_block_delta" ? data.delta.text : null) ?? // Messages
      data.message?.content; // Ollama
    if (typeof text === "string" && text) yield { type: "text", text };
  }
}

/** The JSON of server-sent events, and of JSON lines. */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", end = false; !end; ) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = (end = done) ? "" : lines.pop();
    for (const line of lines) {
      const json = line.startsWith("data:") ? line.slice(5).trim() : line.trim();
      if (json.startsWith("{")) yield JSON.parse(json);
    }
  }
}
