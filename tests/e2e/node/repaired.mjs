// Reads streams of the Responses API with the official package's helper and with the Vercel AI SDK.
// In: {"baseURL", "models", "tool"} on standard input.  Out: for each model, what either of them read.
import { createOpenAI } from '@ai-sdk/openai';
import { jsonSchema, streamText, tool as makeTool } from 'ai';
import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { baseURL, models, tool } = JSON.parse(readFileSync(0, 'utf8'));
const client = new OpenAI({ baseURL, apiKey: 'unused', maxRetries: 0 });
const provider = createOpenAI({ baseURL, apiKey: 'unused' });

async function helper(model) {
  const stream = client.responses.stream({ model, input: 'hi', tools: [tool] });
  const response = await stream.finalResponse();
  const calls = response.output.filter((item) => item.type === 'function_call');
  return { text: response.output_text, calls: calls.map((call) => call.arguments) };
}

async function sdk(model) {
  const faults = [];
  const result = streamText({
    model: provider.responses(model),
    prompt: 'hi',
    tools: { [tool.name]: makeTool({ inputSchema: jsonSchema(tool.parameters) }) },
    maxRetries: 0,
    onError: ({ error }) => faults.push(String(error)),
  });
  await result.consumeStream();
  if (faults.length > 0) throw new Error(faults[0]);
  const calls = await result.toolCalls;
  return { text: await result.text, calls: calls.map((call) => JSON.stringify(call.input)) };
}

const told = (error) => ({ error: String(error) });
const found = {};
for (const model of models) {
  found[model] = { helper: await helper(model).catch(told), sdk: await sdk(model).catch(told) };
}
console.log(JSON.stringify(found));
