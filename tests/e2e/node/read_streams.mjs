// Reads each case twice with the official package: chunk by chunk, and put together by its helper.
// In: {"baseURL", "cases": [{"name", "request"}]} on standard input.  Out: one JSON list.
import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { baseURL, cases } = JSON.parse(readFileSync(0, 'utf8'));
const client = new OpenAI({ baseURL, apiKey: 'unused', maxRetries: 0 });

async function raw(request) {
  const found = { text: '', finishes: [], ids: [], usage: null };
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    found.ids.push(chunk.id);
    if (chunk.usage) found.usage = chunk.usage;
    for (const choice of chunk.choices) {
      if (typeof choice.delta.content === 'string') found.text += choice.delta.content;
      if (choice.finish_reason) found.finishes.push(choice.finish_reason);
    }
  }
  found.ids = [...new Set(found.ids)];
  return found;
}

async function together(request) {
  const final = await client.chat.completions.stream(request).finalChatCompletion();
  const { message, finish_reason } = final.choices[0];
  const calls = (message.tool_calls ?? []).map((call) => call.id);
  return { text: message.content ?? '', finish: finish_reason, role: message.role, calls, usage: final.usage };
}

const told = (error) => ({ error: error.constructor.name, code: error.code ?? null, message: error.message });

const results = [];
for (const { name, request } of cases) {
  results.push({
    name,
    raw: await raw(request).catch(told),
    together: await together(request).catch(told),
  });
}
console.log(JSON.stringify(results));
