// The Vercel AI SDK asks a person: its approval parts for a hosted MCP server on Responses, and a tool of
// its own with `needsApproval` on Chat.
// In: {"baseURL", "stream", "approve", "tool", "store"} on standard input.  Out: {"chat", "responses"}.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { readFileSync } from 'node:fs';

globalThis.AI_SDK_LOG_WARNINGS = false; // They are returned.
const { baseURL, stream, approve, tool: shop, store } = JSON.parse(readFileSync(0, 'utf8'));
const openai = createOpenAI({ baseURL, apiKey: 'unused' });
const compatible = createOpenAICompatible({ name: 'toolrelay', baseURL, apiKey: 'unused' });
const faults = [];

async function step(settings) {
  const whole = { maxRetries: 0, stopWhen: stepCountIs(4), ...settings };
  if (!stream) {
    const result = await generateText(whole);
    return { text: result.text, content: result.content, messages: result.response.messages, steps: result.steps };
  }
  const result = streamText({ ...whole, onError: ({ error }) => faults.push(String(error)) });
  await result.consumeStream();
  return {
    text: await result.text,
    content: await result.content,
    messages: (await result.response).messages,
    steps: await result.steps,
  };
}

async function converse(settings) {
  const messages = [{ role: 'user', content: 'Buy milk.' }];
  const found = { asked: [], warnings: [] };
  const send = async (message) => {
    if (message) messages.push(message);
    const result = await step({ messages, ...settings });
    messages.push(...result.messages);
    found.warnings.push(...result.steps.flatMap((one) => one.warnings ?? []));
    return result;
  };
  const first = await send();
  const requests = first.content.filter((part) => part.type === 'tool-approval-request');
  found.asked = requests.map(({ toolCall }) => [toolCall.toolName, toolCall.input]);
  const answers = requests.map(({ approvalId, toolCall }) => ({
    type: 'tool-approval-response',
    approvalId,
    approved: approve,
    reason: approve ? undefined : 'We have milk.',
    providerExecuted: toolCall.providerExecuted,
  }));
  const second = await send({ role: 'tool', content: answers });
  found.text = second.text;
  found.ran = second.content
    .filter((part) => part.type === 'tool-result' && part.providerExecuted)
    .map((part) => [part.toolName, part.output.arguments, part.output.error ?? null]);
  found.next = (await send({ role: 'user', content: 'Thanks.' })).text;
  return found;
}

const chat = await converse({
  model: compatible('m'),
  tools: {
    toolrelay__approve: tool({
      inputSchema: jsonSchema({ type: 'object' }),
      needsApproval: true,
      execute: async () => ({ approve: true }),
    }),
  },
});
const responses = await converse({
  model: openai.responses('m'),
  providerOptions: { openai: { store } },
  tools: {
    shop: openai.tools.mcp({
      serverLabel: shop.server_label,
      serverUrl: shop.server_url,
      requireApproval: 'never',
    }),
  },
});
console.log(JSON.stringify({ faults, chat, responses }));
