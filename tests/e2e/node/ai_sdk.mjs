// The Vercel AI SDK with its provider for compatible servers: text, and a loop with the client's tool.
// In: {"baseURL", "plain", "mixed"} on standard input, two requests.  Out: what was read of them.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { readFileSync } from 'node:fs';

const { baseURL, plain, mixed } = JSON.parse(readFileSync(0, 'utf8'));
const provider = createOpenAICompatible({ name: 'toolrelay', baseURL, includeUsage: true });

async function read(request, tools) {
  const faults = [];
  const result = streamText({
    model: provider(request.model),
    messages: request.messages,
    tools,
    stopWhen: stepCountIs(5),
    maxRetries: 0,
    onError: ({ error }) => faults.push(String(error)),
  });
  await result.consumeStream();
  const steps = (await result.steps).map((step) => ({
    text: step.text,
    finish: step.finishReason,
    calls: step.toolCalls.map((call) => ({ name: call.toolName, input: call.input })),
    warnings: step.warnings ?? [],
  }));
  return { steps, faults, total: (await result.totalUsage).totalTokens };
}

const order = mixed.tools[0].function;
const lookup = tool({
  description: order.description,
  inputSchema: jsonSchema(order.parameters),
  execute: async () => ({ status: 'shipped' }),
});

console.log(
  JSON.stringify({
    plain: await read(plain, undefined),
    mixed: await read(mixed, { [order.name]: lookup }),
  }),
);
