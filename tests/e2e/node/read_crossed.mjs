// Reads answers, given as bytes, with the official packages of their dialects.
// In: {"cases": [{"dialect", "stream", "data" (base64)}]} on standard input.  Out: one JSON list.
import Anthropic from '@anthropic-ai/sdk';
import { Ollama } from 'ollama';
import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { cases } = JSON.parse(readFileSync(0, 'utf8'));
const ask = [{ role: 'user', content: 'hi' }];

function fetchOf(data, stream) {
  // Byte by byte, as the slowest network would.
  let at = 0;
  const body = new ReadableStream({
    pull(controller) {
      if (at < data.length) controller.enqueue(data.subarray(at, ++at));
      else controller.close();
    },
  });
  const headers = { 'content-type': stream ? 'text/event-stream' : 'application/json' };
  return async () => new Response(stream ? body : data, { status: 200, headers });
}

const options = (data, stream) => ({ apiKey: 'unused', maxRetries: 0, fetch: fetchOf(data, stream) });

async function chat(data, stream) {
  const client = new OpenAI({ baseURL: 'http://x/v1', ...options(data, stream) });
  const body = { model: 'm', messages: ask };
  if (!stream) return heardChat(await client.chat.completions.create(body));
  const text = [], calls = [];
  let finish = '', usage = null, refusal = '';
  for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
    usage = chunk.usage ?? usage;
    for (const { index, delta, finish_reason } of chunk.choices) {
      if (index) continue;
      text.push(delta.content ?? '');
      refusal += delta.refusal ?? '';
      finish = finish_reason ?? finish;
      for (const piece of delta.tool_calls ?? []) {
        calls[piece.index] ??= { id: piece.id, function: { name: '', arguments: '' } };
        calls[piece.index].function.name += piece.function?.name ?? '';
        calls[piece.index].function.arguments += piece.function?.arguments ?? '';
      }
    }
  }
  const message = { content: text.join(''), refusal, tool_calls: calls };
  return heardChat({ choices: [{ message, finish_reason: finish }], usage });
}

function heardChat({ choices: [{ message, finish_reason }], usage }) {
  const calls = (message.tool_calls ?? []).map((call) => [call.id, call.function.name, call.function.arguments]);
  const used = usage ? [usage.prompt_tokens, usage.completion_tokens] : null;
  return { text: message.content ?? '', refusal: message.refusal ?? '', calls, finish: finish_reason, used };
}

async function responses(data, stream) {
  const client = new OpenAI({ baseURL: 'http://x/v1', ...options(data, stream) });
  const body = { model: 'm', input: 'hi' };
  const response = stream
    ? await client.responses.stream(body).finalResponse()
    : await client.responses.create(body);
  const parts = response.output.filter((item) => item.type === 'message').flatMap((item) => item.content);
  const said = (kind, key) => parts.filter((part) => part.type === kind).map((part) => part[key]).join('');
  const calls = response.output
    .filter((item) => item.type === 'function_call')
    .map((item) => [item.call_id, item.name, item.arguments]);
  const { usage } = response;
  return {
    text: said('output_text', 'text'),
    refusal: said('refusal', 'refusal'),
    calls,
    finish: response.incomplete_details?.reason ?? response.status,
    used: usage ? [usage.input_tokens, usage.output_tokens] : null,
  };
}

async function anthropic(data, stream) {
  const client = new Anthropic({ baseURL: 'http://x', ...options(data, stream) });
  const body = { model: 'm', max_tokens: 9, messages: ask };
  const message = stream
    ? await client.messages.stream(body).finalMessage()
    : await client.messages.create(body);
  const { usage } = message;
  const cached = (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);
  return {
    text: message.content.filter((block) => block.type === 'text').map((block) => block.text).join(''),
    refusal: '',
    calls: message.content
      .filter((block) => block.type === 'tool_use')
      .map((block) => [block.id, block.name, JSON.stringify(block.input)]),
    finish: message.stop_reason,
    used: [usage.input_tokens + cached, usage.output_tokens],
  };
}

async function ollama(data, stream) {
  const client = new Ollama({ host: 'http://x', fetch: fetchOf(data, stream) });
  const said = await client.chat({ model: 'm', messages: ask, stream });
  const parts = [];
  if (stream) for await (const part of said) parts.push(part);
  else parts.push(said);
  const last = parts.at(-1);
  const calls = parts.flatMap(({ message }) => message.tool_calls ?? []);
  const counted = last.prompt_eval_count !== undefined || last.eval_count !== undefined;
  return {
    text: parts.map(({ message }) => message.content).join(''),
    refusal: '',
    calls: calls.map((call) => ['', call.function.name, JSON.stringify(call.function.arguments)]),
    finish: calls.length && last.done_reason === 'stop' ? 'calls' : last.done_reason,
    used: counted ? [last.prompt_eval_count ?? 0, last.eval_count ?? 0] : null,
  };
}

const readers = { chat, responses, anthropic, ollama };
const told = (error) => ({ error: `${error.constructor.name}: ${error.message}` });
const results = [];
for (const { dialect, stream, data } of cases) {
  results.push(await readers[dialect](Buffer.from(data, 'base64'), stream).catch(told));
}
console.log(JSON.stringify(results));
