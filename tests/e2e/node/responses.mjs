// The Responses API: the package's stream helper in a loop of its own, and the Vercel AI SDK's.
// In: {"baseURL", "tool", "questions", "store"} on standard input.  Out: what was read, for each question.
import { createOpenAI } from '@ai-sdk/openai';
import { jsonSchema, stepCountIs, streamText, tool as makeTool } from 'ai';
import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { baseURL, tool, questions, store } = JSON.parse(readFileSync(0, 'utf8'));
const client = new OpenAI({ baseURL, apiKey: 'unused', maxRetries: 0 });
const provider = createOpenAI({ baseURL, apiKey: 'unused' });
const ANSWER = '15:00, dentist';

async function helper(question) {
  const input = [{ role: 'user', content: question }];
  const asked = [];
  for (let turn = 0; turn < 4; turn += 1) {
    const events = [];
    const stream = client.responses.stream({ model: 'm', input, tools: [tool], store });
    stream.on('event', (event) => events.push(event.type));
    const response = await stream.finalResponse();
    input.push(...response.output);
    const calls = response.output.filter((item) => item.type === 'function_call');
    asked.push(...calls.map((call) => call.name));
    if (calls.length === 0) {
      return { text: response.output_text, asked, last: events.at(-1), status: response.status };
    }
    for (const call of calls) {
      input.push({ type: 'function_call_output', call_id: call.call_id, output: ANSWER });
    }
  }
  return { text: 'it never ended', asked };
}

async function sdk(question) {
  const faults = [];
  const result = streamText({
    model: provider.responses('m'),
    prompt: question,
    providerOptions: { openai: { store } },
    tools: {
      [tool.name]: makeTool({ inputSchema: jsonSchema(tool.parameters), execute: async () => ANSWER }),
    },
    stopWhen: stepCountIs(4),
    maxRetries: 0,
    onError: ({ error }) => faults.push(String(error)),
  });
  await result.consumeStream();
  const steps = await result.steps;
  return {
    faults,
    text: steps.at(-1).text,
    finish: steps.map((step) => step.finishReason),
    asked: steps.flatMap((step) => step.toolCalls.filter((call) => !call.providerExecuted).map((call) => call.toolName)),
    shown: steps.flatMap((step) => step.toolCalls.filter((call) => call.providerExecuted).map((call) => call.toolName)),
    warnings: steps.flatMap((step) => step.warnings ?? []),
  };
}

const found = {};
for (const question of questions) {
  found[question] = { helper: await helper(question), sdk: await sdk(question) };
}
console.log(JSON.stringify(found));
