// The openai package asks a person: runTools with the function on Chat, and items on Responses.
// In: {"baseURL", "stream", "approve", "tool", "store", "byId"} on standard input.
// Out: {"chat", "responses"}, each with the text, and what the person was asked.
import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { baseURL, stream, approve, tool, store, byId } = JSON.parse(readFileSync(0, 'utf8'));
const client = new OpenAI({ baseURL, apiKey: 'unused', maxRetries: 0 });
const QUESTION = 'Buy milk.';
const THANKS = 'Thanks.';
const answer = approve ? { approve } : { approve, reason: 'We have milk.' };

async function chat() {
  const asked = [];
  const tools = [
    {
      type: 'function',
      function: {
        name: 'toolrelay__approve',
        parameters: { type: 'object', properties: {} },
        parse: JSON.parse,
        function: (question) => {
          asked.push([question.tool, question.arguments]);
          return JSON.stringify(answer);
        },
      },
    },
  ];
  const runner = client.chat.completions.runTools({ model: 'm', messages: [{ role: 'user', content: QUESTION }], tools, stream });
  const text = await runner.finalContent();
  const messages = [...runner.messages, { role: 'user', content: THANKS }];
  const next = client.chat.completions.runTools({ model: 'm', messages, tools, stream });
  return { text, asked, next: await next.finalContent() };
}

async function respond(body) {
  const whole = { model: 'm', tools: [tool], store, ...body };
  return stream ? client.responses.stream(whole).finalResponse() : client.responses.create(whole);
}

async function responses() {
  let history = [{ role: 'user', content: QUESTION }];
  let response = await respond({ input: history });
  const questions = response.output.filter((item) => item.type === 'mcp_approval_request');
  const asked = questions.map((item) => [`${item.server_label}.${item.name}`, JSON.parse(item.arguments)]);
  const answers = questions.map((item) => ({ type: 'mcp_approval_response', approval_request_id: item.id, ...answer }));
  const send = async (items) => {
    if (byId) {
      response = await respond({ input: items, previous_response_id: response.id });
    } else {
      history = [...history, ...response.output, ...items];
      response = await respond({ input: history });
    }
    return response.output_text;
  };
  return { text: await send(answers), asked, next: await send([{ role: 'user', content: THANKS }]) };
}

console.log(JSON.stringify({ chat: await chat(), responses: await responses() }));
