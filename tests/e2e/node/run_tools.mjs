// The package's own tool loop: it runs the client's function and goes on until the model answers.
// In: {"baseURL", "request"} on standard input.  Out: {"text", "asked", "messages"} for both ways.
import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { baseURL, request } = JSON.parse(readFileSync(0, 'utf8'));
const client = new OpenAI({ baseURL, apiKey: 'unused', maxRetries: 0 });

async function run(stream) {
  const asked = [];
  const tools = request.tools.map((tool) => ({
    ...tool,
    function: {
      ...tool.function,
      parse: JSON.parse,
      function: (args) => {
        asked.push(args);
        return JSON.stringify({ status: 'shipped' });
      },
    },
  }));
  const { stream_options, ...rest } = request;
  const body = stream ? { ...rest, stream_options, tools, stream } : { ...rest, tools, stream };
  const runner = client.chat.completions.runTools(body);
  const text = await runner.finalContent();
  return { text, asked, roles: runner.messages.map((message) => message.role) };
}

console.log(JSON.stringify({ streamed: await run(true), whole: await run(false) }));
