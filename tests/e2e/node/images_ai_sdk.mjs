// Vercel's AI SDK with the image generation of OpenAI's provider: two questions to each model.
// In: {"root", "models", "questions"} on standard input.  Out: for each model, the answers and the images.
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, streamText } from 'ai';
import { readFileSync } from 'node:fs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const { root, models, questions } = JSON.parse(readFileSync(0, 'utf8'));
const openai = createOpenAI({ baseURL: `${root}/v1`, apiKey: 'k' });
const tools = { image_generation: openai.tools.imageGeneration({ outputFormat: 'png', quality: 'low', partialImages: 1 }) };
const found = {};
for (const name of models) {
  for (const streamed of [false, true]) {
    const messages = [];
    const seen = { answers: [], images: [] };
    for (const question of questions) {
      messages.push({ role: 'user', content: question });
      const asked = { model: openai.responses(name), messages, tools, stopWhen: stepCountIs(5), maxRetries: 0 };
      let result;
      if (streamed) {
        result = streamText({ ...asked, onError: ({ error }) => { throw error; } });
        await result.consumeStream();
      } else {
        result = await generateText(asked);
      }
      seen.answers.push(await result.text);
      // In a stream the SDK also has a result for each partial image, before the image itself.
      const made = (await result.staticToolResults).filter((one) => one.toolName === 'image_generation');
      seen.images.push(made.at(-1).output.result);
      messages.push(...(await result.response).messages);
    }
    found[`${name} ${streamed}`] = seen;
  }
}
console.log(JSON.stringify(found));
