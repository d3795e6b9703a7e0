// Vercel's AI SDK with the web search of OpenAI's and Anthropic's providers: two questions to each model.
// In: {"root", "models", "questions"} on standard input.  Out: for each model, the answers, the pages of the
// sources, and how many searches the SDK saw.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, streamText } from 'ai';
import { readFileSync } from 'node:fs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const { root, models, questions } = JSON.parse(readFileSync(0, 'utf8'));
const openai = createOpenAI({ baseURL: `${root}/v1`, apiKey: 'k' });
const anthropic = createAnthropic({ baseURL: `${root}/v1`, apiKey: 'k' });
const providers = {
  openai: [(name) => openai.responses(name), { web_search: openai.tools.webSearch() }],
  anthropic: [(name) => anthropic(name), { web_search: anthropic.tools.webSearch_20250305({ maxUses: 3 }) }],
};
const found = {};
for (const [provider, [model, tools]] of Object.entries(providers)) {
  for (const name of models) {
    for (const streamed of [false, true]) {
      const messages = [];
      const seen = { answers: [], sources: [], searches: 0 };
      for (const question of questions) {
        messages.push({ role: 'user', content: question });
        const asked = { model: model(name), messages, tools, stopWhen: stepCountIs(5), maxRetries: 0 };
        let result;
        if (streamed) {
          result = streamText({ ...asked, onError: ({ error }) => { throw error; } });
          await result.consumeStream();
        } else {
          result = await generateText(asked);
        }
        seen.answers.push(await result.text);
        seen.sources.push(...(await result.sources).map((source) => source.url));
        seen.searches += (await result.toolCalls).filter((call) => call.toolName === 'web_search').length;
        messages.push(...(await result.response).messages);
      }
      found[`${provider} ${name} ${streamed}`] = seen;
    }
  }
}
console.log(JSON.stringify(found));
