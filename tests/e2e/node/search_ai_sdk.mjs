// Vercel's AI SDK with the tool search of OpenAI's and Anthropic's providers: two questions to one model.
// In: {"root", "provider", "streamed", "questions"} on standard input.  Out: the answers, and what the tools
// were called with.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { readFileSync } from 'node:fs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const { root, provider, streamed, questions } = JSON.parse(readFileSync(0, 'utf8'));
const openai = createOpenAI({ baseURL: `${root}/v1`, apiKey: 'k' });
const anthropic = createAnthropic({ baseURL: `${root}/v1`, apiKey: 'k' });
const called = [];

// A tool that has to be found.
const deferred = (description, argument, result) =>
  tool({
    description,
    inputSchema: jsonSchema({
      type: 'object',
      properties: { [argument]: { type: 'string' } },
      required: [argument],
      additionalProperties: false,
    }),
    providerOptions: { openai: { deferLoading: true }, anthropic: { deferLoading: true } },
    execute: async (input) => {
      called.push(input[argument]);
      return result;
    },
  });

const searches = {
  openai: { toolSearch: openai.tools.toolSearch() },
  words: { toolSearch: anthropic.tools.toolSearchBm25_20251119() },
  patterns: { toolSearch: anthropic.tools.toolSearchRegex_20251119() },
};
const tools = {
  ...searches[provider],
  get_rate: deferred('Look up an exchange rate.', 'currency', '1 USD = 0.92 EUR'),
  look_up: deferred('Look up a stock price.', 'symbol', 'X costs 12'),
};
const model = provider === 'openai' ? openai.responses('m') : anthropic('m');
const messages = [];
const answers = [];
for (const question of questions) {
  messages.push({ role: 'user', content: question });
  const asked = { model, messages, tools, stopWhen: stepCountIs(5), maxRetries: 0 };
  let result;
  if (streamed) {
    result = streamText({ ...asked, onError: ({ error }) => { throw error; } });
    await result.consumeStream();
  } else {
    result = await generateText(asked);
  }
  answers.push(await result.text);
  messages.push(...(await result.response).messages);
}
console.log(JSON.stringify({ answers, called }));
