// Vercel's AI SDK with the typed tools of OpenAI's and Anthropic's providers: two questions to each model,
// with and without a stream.
// In: {"root", "models", "questions"} on standard input.  Out: for each provider, model and way, the answers
// and what the tools were called with.
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, streamText } from 'ai';
import { readFileSync } from 'node:fs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const { root, models, questions } = JSON.parse(readFileSync(0, 'utf8'));
const openai = createOpenAI({ baseURL: `${root}/v1`, apiKey: 'k' });
const anthropic = createAnthropic({ baseURL: `${root}/v1`, apiKey: 'k' });

// The tools of each provider, and its model of a name. `ran` gets what a tool is called with.
const providers = {
  openai: {
    model: (name) => openai.responses(name),
    tools: (ran) => ({
      shell: openai.tools.shell({
        execute: async ({ action }) => {
          ran(action);
          return {
            output: action.commands.map((command) => ({
              stdout: `ran ${command}`,
              stderr: '',
              outcome: { type: 'exit', exitCode: 0 },
            })),
          };
        },
      }),
      local_shell: openai.tools.localShell({
        execute: async ({ action }) => {
          ran(action);
          return { output: `ran ${action.command} locally` };
        },
      }),
      apply_patch: openai.tools.applyPatch({
        execute: async ({ operation }) => {
          ran(operation);
          return { status: 'completed', output: `created ${operation.path}` };
        },
      }),
    }),
  },
  anthropic: {
    model: (name) => anthropic(name),
    tools: (ran) => {
      const execute = async (input) => {
        ran(input);
        return `ran ${JSON.stringify(input)}`;
      };
      return {
        bash: anthropic.tools.bash_20250124({ execute }),
        str_replace_based_edit_tool: anthropic.tools.textEditor_20250728({ execute }),
        memory: anthropic.tools.memory_20250818({ execute }),
      };
    },
  },
};

async function converse({ model, tools }, name, ask) {
  const called = [];
  const answers = [];
  const messages = [];
  for (const question of questions) {
    messages.push({ role: 'user', content: question });
    let fault;
    const result = await ask({
      model: model(name),
      messages,
      tools: tools((input) => called.push(input)),
      stopWhen: stepCountIs(5),
      maxRetries: 0,
      onError: ({ error }) => (fault = error),
    });
    await result.consumeStream?.();
    if (fault) throw fault;
    answers.push(await result.text);
    messages.push(...(await result.response).messages);
  }
  return { answers, called };
}

const found = {};
for (const [library, provider] of Object.entries(providers)) {
  for (const name of models) {
    for (const ask of [generateText, streamText]) {
      const key = `${library} ${name} ${ask.name}`;
      try {
        found[key] = await converse(provider, name, ask);
      } catch (error) {
        found[key] = `${error.stack} ${error.responseBody ?? ''}`;
      }
    }
  }
}
console.log(JSON.stringify(found));
