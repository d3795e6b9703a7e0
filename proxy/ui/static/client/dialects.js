// The playground's client: one streaming request in each dialect, read as text and the proxy's reports of tool calls.

/** What each dialect needs: its path, its body, and how to read an event of its stream. */
export const DIALECTS = {
  chat: {
    name: "Chat Completions",
    path: "v1/chat/completions",
    body: ({ model, messages, system, ...rest }) => ({
      ...rest,
      model,
      stream: true,
      stream_options: { include_usage: true },
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messages.map(chatMessage)],
    }),
    read: (data, _event, tell) => {
      const delta = data.choices?.[0]?.delta;
      if (delta?.content) tell("text", delta.content);
      if (delta?.reasoning_content ?? delta?.reasoning) tell("thinking", delta.reasoning_content ?? delta.reasoning);
      if (data.choices?.[0]?.finish_reason) tell("end", data.choices[0].finish_reason);
      if (data.usage) tell("usage", { input: data.usage.prompt_tokens, output: data.usage.completion_tokens });
      delta?.tool_calls?.forEach((call) => call.function?.name && tell("client-call", call.function.name));
    },
  },
  responses: {
    name: "Responses",
    path: "v1/responses",
    body: ({ model, messages, system, max_tokens, ...rest }) => ({
      ...rest,
      model,
      stream: true,
      ...(system && { instructions: system }),
      ...(max_tokens && { max_output_tokens: max_tokens }),
      input: messages.map(responsesItem),
    }),
    read: (data, _event, tell) => {
      if (data.type === "response.output_text.delta") tell("text", data.delta);
      else if (/reasoning.*delta$/.test(data.type ?? "")) tell("thinking", data.delta);
      else if (data.type === "response.output_item.added" && data.item?.type === "mcp_call")
        tell("call", {
          call_id: data.item.id,
          name: data.item.name,
          arguments: parsed(data.item.arguments),
          status: "in_progress",
        });
      else if (data.type === "response.output_item.done" && data.item?.type === "mcp_call")
        tell("result", {
          call_id: data.item.id,
          name: data.item.name,
          arguments: parsed(data.item.arguments),
          status: data.item.error ? "failed" : "completed",
          result: parsed(data.item.output),
          error: data.item.error && { message: text(data.item.error) },
        });
      else if (data.type === "response.output_item.done" && data.item?.type === "mcp_approval_request")
        tell("approval", { id: data.item.id, tool: data.item.name, arguments: parsed(data.item.arguments) });
      else if (/^response\.(completed|incomplete|failed)$/.test(data.type ?? "")) {
        tell("end", data.response?.status);
        if (data.response?.usage)
          tell("usage", { input: data.response.usage.input_tokens, output: data.response.usage.output_tokens });
        if (data.response?.error) tell("error", data.response.error.message);
      }
    },
  },
  messages: {
    name: "Messages",
    path: "v1/messages",
    headers: { "anthropic-version": "2023-06-01" },
    body: ({ model, messages, system, max_tokens, ...rest }) => ({
      ...rest,
      model,
      stream: true,
      max_tokens: max_tokens ?? 1024,
      ...(system && { system }),
      messages: messages.map(anthropicMessage),
    }),
    read: (data, _event, tell) => {
      if (data.type === "content_block_delta") {
        if (data.delta?.text) tell("text", data.delta.text);
        if (data.delta?.thinking) tell("thinking", data.delta.thinking);
      } else if (data.type === "content_block_start" && data.content_block?.type === "tool_use")
        tell("client-call", data.content_block.name);
      else if (data.type === "message_start") tell("usage", { input: data.message?.usage?.input_tokens });
      else if (data.type === "message_delta") {
        if (data.usage)
          tell("usage", {
            ...(data.usage.input_tokens !== undefined && { input: data.usage.input_tokens }),
            output: data.usage.output_tokens,
          });
        if (data.delta?.stop_reason) tell("end", data.delta.stop_reason);
      }
    },
  },
  ollama: {
    name: "Ollama",
    path: "api/chat",
    body: ({ model, messages, system, max_tokens, temperature, ...rest }) => ({
      ...rest,
      model,
      stream: true,
      ...((max_tokens || temperature !== undefined) && {
        options: { ...(max_tokens && { num_predict: max_tokens }), ...(temperature !== undefined && { temperature }) },
      }),
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messages.map(ollamaMessage)],
    }),
    read: (data, _event, tell) => {
      if (data.message?.content) tell("text", data.message.content);
      if (data.message?.thinking) tell("thinking", data.message.thinking);
      if (data.done) {
        tell("usage", { input: data.prompt_eval_count, output: data.eval_count });
        tell("end", data.done_reason);
      }
    },
  },
};

const parsed = (value) => {
  try {
    return typeof value === "string" ? JSON.parse(value) : value;
  } catch {
    return value;
  }
};
const text = (value) => (typeof value === "string" ? value : (value?.message ?? JSON.stringify(value)));
const split = (url) => /^data:([^;]+);base64,(.*)$/s.exec(url) ?? [null, "", ""];
const many = (message, part, image) =>
  message.images?.length ? [{ ...part(message.content) }, ...message.images.map(image)] : message.content;

const chatMessage = (message) => ({
  role: message.role,
  content: many(
    message,
    (content) => ({ type: "text", text: content }),
    (url) => ({ type: "image_url", image_url: { url } }),
  ),
});
const responsesItem = (message) =>
  message.images?.length
    ? {
        role: message.role,
        content: [
          { type: "input_text", text: message.content },
          ...message.images.map((url) => ({ type: "input_image", image_url: url })),
        ],
      }
    : { role: message.role, content: message.content };
const anthropicMessage = (message) => ({
  role: message.role,
  content: many(
    message,
    (content) => ({ type: "text", text: content }),
    (url) => ({ type: "image", source: { type: "base64", media_type: split(url)[1], data: split(url)[2] } }),
  ),
});
const ollamaMessage = (message) => ({
  role: message.role,
  content: message.content,
  ...(message.images?.length && { images: message.images.map((url) => split(url)[2]) }),
});

/** The body of a request in a dialect. */
export const bodyOf = (dialect, asked) => DIALECTS[dialect].body(asked);

/**
 * Send a request, and call `tell(kind, value)` for what comes back: text, thinking, call, progress, result, approval,
 * client-call, usage, end, error.  Returns the run's id.
 */
export async function streamPlay(dialect, asked, headers, tell, signal) {
  const way = DIALECTS[dialect];
  const response = await fetch(`/ui/api/play/${way.path}`, {
    method: "POST",
    credentials: "same-origin",
    signal,
    headers: {
      "Content-Type": "application/json",
      "x-toolrelay-ui": "1",
      "x-toolrelay-trace": "events",
      ...way.headers,
      ...headers,
    },
    body: JSON.stringify(way.body(asked)),
  });
  const run = response.headers.get("x-toolrelay-run");
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new Error(text(answer?.error ?? answer?.message ?? `The server answered ${response.status}.`));
  }
  for await (const [event, data] of events(response.body)) {
    if (data.error && (!data.type || data.type === "error")) {
      tell("error", text(data.error));
      continue;
    }
    const traces = [data.x_toolrelay].flat().filter(Boolean);
    for (const trace of traces) traced(trace, tell);
    way.read(data, event, tell);
  }
  return run;
}

function traced(trace, tell) {
  if (trace.type === "tool_call") tell("call", trace);
  else if (trace.type === "tool_progress") tell("progress", trace);
  else if (trace.type === "tool_result") tell("result", trace);
}

/** The events of a stream: server-sent events, or JSON lines. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message";
  let lines = [];
  const parse = (data) => {
    try {
      return JSON.parse(data);
    } catch {
      return null; // `[DONE]`, and anything else that is not JSON.
    }
  };
  for (;;) {
    const { value, done } = await reader.read();
    rest += value ?? "";
    const found = rest.split(/\r\n|\n|\r(?!$)/);
    rest = done ? "" : found.pop();
    for (const line of found) {
      if (line.startsWith("{")) {
        const data = parse(line);
        if (data) yield [event, data];
      } else if (line === "") {
        const data = lines.length ? parse(lines.join("\n")) : null;
        if (data) yield [event, data];
        lines = [];
        event = "message";
      } else if (line.startsWith("data:")) lines.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line.startsWith("event:")) event = line.slice(6).trim();
    }
    if (done) {
      const data = lines.length ? parse(lines.join("\n")) : null;
      if (data) yield [event, data];
      return;
    }
  }
}
