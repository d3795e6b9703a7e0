// OpenAI's and Anthropic's packages with the web search of their provider: two questions to each model, each
// as a reply, as a stream, and with the helper that collects a stream.
// In: {"root", "models", "questions"} on standard input.  Out: for each way and model, the answers, how many
// searches there were, and the pages that they found.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { root, models, questions } = JSON.parse(readFileSync(0, 'utf8'));
const openai = new OpenAI({ baseURL: `${root}/v1`, apiKey: 'k', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: root, apiKey: 'k', maxRetries: 0 });

async function last(stream) {
  let found;
  for await (const event of stream) if (event.type === 'response.completed') found = event.response;
  return found;
}

const ofOpenai = (ask) => async (model, said) => {
  const include = ['web_search_call.action.sources'];
  const response = await ask({ model, input: said, tools: [{ type: 'web_search' }], include });
  said.push(...response.output);
  const searches = response.output.filter((item) => item.type === 'web_search_call');
  const texts = response.output.filter((item) => item.type === 'message').flatMap((item) => item.content);
  return {
    text: texts.map((part) => part.text).join(''),
    searches: searches.length,
    pages: searches.flatMap((item) => item.action.sources.map((source) => source.url)),
  };
};

const ofAnthropic = (ask) => async (model, said) => {
  const tools = [{ type: 'web_search_20250305', name: 'web_search', max_uses: 3 }];
  const message = await ask({ model, max_tokens: 1000, messages: said, tools });
  said.push({ role: 'assistant', content: message.content });
  const found = message.content.filter((block) => block.type === 'web_search_tool_result');
  return {
    text: message.content.filter((block) => block.type === 'text').map((block) => block.text).join(''),
    searches: message.usage.server_tool_use.web_search_requests,
    pages: found.flatMap((block) => block.content.map((page) => page.url)),
  };
};

const ways = {
  'openai reply': ofOpenai((body) => openai.responses.create(body)),
  'openai stream': ofOpenai(async (body) => last(await openai.responses.create({ ...body, stream: true }))),
  'openai helper': ofOpenai((body) => openai.responses.stream(body).finalResponse()),
  'anthropic reply': ofAnthropic((body) => anthropic.messages.create(body)),
  'anthropic helper': ofAnthropic((body) => anthropic.messages.stream(body).finalMessage()),
};
const found = {};
for (const [way, ask] of Object.entries(ways)) {
  for (const model of models) {
    const said = [];
    const seen = { answers: [], searches: 0, pages: [] };
    for (const question of questions) {
      said.push({ role: 'user', content: question });
      const got = await ask(model, said);
      seen.answers.push(got.text);
      seen.searches += got.searches;
      seen.pages.push(...got.pages);
    }
    found[`${way} ${model}`] = seen;
  }
}
console.log(JSON.stringify(found));
