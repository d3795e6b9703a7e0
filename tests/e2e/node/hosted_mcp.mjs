// The Vercel AI SDK with a hosted MCP server beside a function of its own.
// In: {"baseURL", "calendar", "question"} on standard input.  Out: what was read.
import { createOpenAI } from '@ai-sdk/openai';
import { jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { readFileSync } from 'node:fs';

const { baseURL, calendar, question } = JSON.parse(readFileSync(0, 'utf8'));
const provider = createOpenAI({ baseURL, apiKey: 'unused' });
const faults = [];
const result = streamText({
  model: provider.responses('m'),
  prompt: question,
  tools: {
    clock: provider.tools.mcp({
      serverLabel: 'clock',
      serverUrl: 'toolrelay/core',
      allowedTools: ['get_current_time'],
      requireApproval: 'never',
    }),
    [calendar.name]: tool({
      inputSchema: jsonSchema(calendar.parameters),
      execute: async () => '15:00, dentist',
    }),
  },
  stopWhen: stepCountIs(4),
  maxRetries: 0,
  onError: ({ error }) => faults.push(String(error)),
});
await result.consumeStream();
const steps = await result.steps;
console.log(
  JSON.stringify({
    faults,
    text: steps.at(-1).text,
    shown: steps.flatMap((step) => step.toolCalls.filter((call) => call.providerExecuted).map((call) => call.toolName)),
  }),
);
