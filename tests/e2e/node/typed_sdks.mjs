// The SDKs of OpenAI and Anthropic for Node with typed tools: two questions to each model, with and without a
// stream.  The items of the first question go back in the second.
// In: {"root", "models", "questions"} on standard input.  Out: for each SDK, model and way, the answers and the
// calls.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { readFileSync } from 'node:fs';

const { root, models, questions } = JSON.parse(readFileSync(0, 'utf8'));
const openai = new OpenAI({ baseURL: `${root}/v1`, apiKey: 'k', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: root, apiKey: 'k', maxRetries: 0 });

const OUTPUTS = {
  shell_call: ({ call_id, action }) => ({
    type: 'shell_call_output',
    call_id,
    output: action.commands.map((command) => ({
      stdout: `ran ${command}`,
      stderr: '',
      outcome: { type: 'exit', exit_code: 0 },
    })),
  }),
  local_shell_call: ({ call_id, action }) => ({
    type: 'local_shell_call_output',
    id: call_id,
    output: JSON.stringify({ output: `ran ${action.command} locally` }),
  }),
  apply_patch_call: ({ call_id, operation }) => ({
    type: 'apply_patch_call_output',
    call_id,
    status: 'completed',
    output: `created ${operation.path}`,
  }),
  custom_tool_call: ({ call_id, input }) => ({ type: 'custom_tool_call_output', call_id, output: `heard ${input}` }),
  function_call: ({ call_id, namespace, name }) => ({
    type: 'function_call_output',
    call_id,
    output: `called ${namespace} ${name}`,
  }),
  tool_search_call: ({ call_id }) => ({ type: 'tool_search_output', call_id, execution: 'client', tools: [] }),
};
const CITY = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const QUERY = { type: 'object', properties: { query: { type: 'string' } }, required: ['query'] };
const TOOLS = [
  { type: 'shell', environment: { type: 'local' } },
  { type: 'apply_patch' },
  { type: 'local_shell' },
  { type: 'custom', name: 'say' },
  {
    type: 'namespace',
    name: 'weather',
    description: 'The weather.',
    tools: [
      { type: 'function', name: 'now', parameters: CITY, strict: false },
      { type: 'custom', name: 'ask', description: 'Asks in words.' },
    ],
  },
  { type: 'tool_search', execution: 'client', description: 'Finds tools.', parameters: QUERY },
];

const parsed = (given) => (typeof given === 'string' ? JSON.parse(given) : given);

const sdks = {
  openai: async (model, question, input, calls, streamed) => {
    input.push({ role: 'user', content: question });
    for (;;) {
      const asked = {
        model,
        input,
        store: false,
        tools: TOOLS,
      };
      const response = streamed
        ? await openai.responses.stream(asked).finalResponse()
        : await openai.responses.create(asked);
      // The helper adds `parsed` to texts, which OpenAI does not take back.
      input.push(...JSON.parse(JSON.stringify(response.output, (name, value) => (name === 'parsed' ? undefined : value))));
      const called = response.output.filter((item) => item.type in OUTPUTS);
      if (!called.length) return response.output_text;
      calls.push(...called.map((item) => item.action ?? item.operation ?? item.input ?? parsed(item.arguments)));
      input.push(...called.map((item) => OUTPUTS[item.type](item)));
    }
  },
  anthropic: async (model, question, messages, calls, streamed) => {
    messages.push({ role: 'user', content: question });
    for (;;) {
      const asked = {
        model,
        messages,
        max_tokens: 1000,
        tools: [
          { type: 'bash_20250124', name: 'bash' },
          { type: 'text_editor_20250728', name: 'str_replace_based_edit_tool' },
          { type: 'memory_20250818', name: 'memory' },
        ],
      };
      const message = streamed
        ? await anthropic.messages.stream(asked).finalMessage()
        : await anthropic.messages.create(asked);
      messages.push({ role: 'assistant', content: message.content });
      const called = message.content.filter((block) => block.type === 'tool_use');
      if (!called.length) return message.content.map((block) => block.text ?? '').join('');
      calls.push(...called.map(({ input }) => input));
      const content = called.map(({ id, input }) => ({
        type: 'tool_result',
        tool_use_id: id,
        content: `ran ${JSON.stringify(input)}`,
      }));
      messages.push({ role: 'user', content });
    }
  },
};

const found = {};
for (const [sdk, ask] of Object.entries(sdks)) {
  for (const model of models) {
    for (const streamed of [false, true]) {
      const key = `${sdk} ${model} ${streamed ? 'streamed' : 'whole'}`;
      const said = [];
      const calls = [];
      const answers = [];
      try {
        for (const question of questions) answers.push(await ask(model, question, said, calls, streamed));
        found[key] = { answers, called: calls };
      } catch (error) {
        found[key] = String(error.stack);
      }
    }
  }
}
console.log(JSON.stringify(found));
