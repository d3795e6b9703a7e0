// Ollama's own package for Node as a program: models, a loop with a tool of the program's, thinking, errors.
// In: {"host", "model", "tool", "lost"} on standard input.  Out: what it read.
import { Ollama } from 'ollama';
import { readFileSync } from 'node:fs';

const { host, model, tool, lost } = JSON.parse(readFileSync(0, 'utf8'));
const client = new Ollama({ host, headers: { Authorization: 'Bearer unused' } });
const told = (error) => `${error.name}: ${error.message}`;

async function models() {
  const { models: listed } = await client.list();
  const { capabilities } = await client.show({ model });
  return { listed: listed.map((one) => one.model), tools: capabilities.includes('tools') };
}

async function streamed(messages) {
  const found = { text: '', thinking: '', calls: [], ends: 0 };
  for await (const part of await client.chat({ model, messages, tools: [tool], think: true, stream: true })) {
    found.text += part.message.content;
    found.thinking += part.message.thinking ?? '';
    found.calls.push(...(part.message.tool_calls ?? []));
    if (part.done) Object.assign(found, { ends: found.ends + 1, reason: part.done_reason, used: part.eval_count });
  }
  return found;
}

async function loop() {
  const messages = [{ role: 'user', content: 'What time is it?' }];
  const first = await streamed(messages);
  messages.push({ role: 'assistant', content: first.text, thinking: first.thinking, tool_calls: first.calls });
  for (const call of first.calls) {
    const { a, b } = call.function.arguments;
    messages.push({ role: 'tool', tool_name: call.function.name, content: String(a + b) });
  }
  return { first, second: await streamed(messages) };
}

async function whole() {
  const messages = [{ role: 'user', content: 'hi' }];
  const { message, done_reason } = await client.chat({ model, messages, think: true, stream: false });
  return { text: message.content, thinking: message.thinking, reason: done_reason };
}

const results = { models: await models(), loop: await loop(), whole: await whole(), errors: [] };
for (let count = 0; count < lost; count += 1) {
  results.errors.push(await streamed([{ role: 'user', content: 'hi' }]).then(() => 'none', told));
}
results.errors.push(await client.pull({ model }).then(() => 'none', told));
console.log(JSON.stringify(results));
