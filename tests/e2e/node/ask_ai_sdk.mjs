// Vercel's AI SDK with its providers: two questions with a tool of the client's to each model, streamed.
// In: {"root", "models", "questions"} on standard input.  Out: for each library and model, the answers and the
// arguments of the client's tool.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { readFileSync } from 'node:fs';
import { createOllama } from 'ollama-ai-provider-v2';

globalThis.AI_SDK_LOG_WARNINGS = false;
const { root, models, questions } = JSON.parse(readFileSync(0, 'utf8'));
const baseURL = `${root}/v1`;
const openai = createOpenAI({ baseURL, apiKey: 'k' });
const anthropic = createAnthropic({ baseURL, apiKey: 'k' });
const ollama = createOllama({ baseURL: `${root}/api` });
const compatible = createOpenAICompatible({ name: 'toolrelay', baseURL, apiKey: 'k', includeUsage: true });
const libraries = {
  openai: (name) => openai.chat(name),
  'openai-responses': (name) => openai.responses(name),
  'openai-compatible': (name) => compatible(name),
  anthropic: (name) => anthropic(name),
  ollama: (name) => ollama(name),
};

async function converse(model) {
  const days = [];
  const answers = [];
  const messages = [];
  const get_calendar = tool({
    description: 'Return what is on a day.',
    inputSchema: jsonSchema({
      type: 'object',
      properties: { day: { type: 'string' } },
      required: ['day'],
      additionalProperties: false,
    }),
    execute: async ({ day }) => {
      days.push(day);
      return 'free at noon';
    },
  });
  for (const question of questions) {
    messages.push({ role: 'user', content: question });
    let fault;
    const result = streamText({
      model,
      system: 'Be brief.',
      messages,
      tools: { get_calendar },
      stopWhen: stepCountIs(5),
      maxRetries: 0,
      onError: ({ error }) => (fault = error),
    });
    await result.consumeStream();
    if (fault) throw fault;
    answers.push(await result.text);
    messages.push(...(await result.response).messages);
  }
  return { answers, days };
}

const found = {};
for (const [library, make] of Object.entries(libraries)) {
  for (const name of models) {
    try {
      found[`${library} ${name}`] = await converse(make(name));
    } catch (error) {
      found[`${library} ${name}`] = String(error);
    }
  }
}
console.log(JSON.stringify(found));
