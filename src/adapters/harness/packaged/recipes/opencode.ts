/**
 * @file OpenCode, headless.
 *
 * Its configuration lies in its private home and names the variable that holds the key.
 */
import { readFileSync } from 'node:fs'
import type { HarnessEndpoint } from '../../../../ports/harness.ts'
import type { ProcessEnd } from '../../../../ports/sandbox.ts'
import { lastEvent } from '../event-lines.ts'
import { nativeProgram, type NativePaths } from '../native-program.ts'
import type { HarnessRecipe, LaunchPlan, RecipeContext } from '../recipe.ts'

const NAME = 'opencode'
const PROVIDER = 'gyre'
const KEY_VARIABLE = 'GYRE_API_KEY'
const CONFIG_FOLDER = '.config/opencode'
/** In the harness's home. */
const INSTRUCTION_FILE = '.instruction'
const PLUGIN = '@opencode-ai/plugin'

const program = (target: string): string => `opencode-${target}/bin/opencode`
const NATIVE: NativePaths = {
  'linux-x64': [program('linux-x64'), program('linux-x64-baseline'), program('linux-x64-musl')],
  'linux-arm64': [program('linux-arm64'), program('linux-arm64-musl')],
  'darwin-x64': [program('darwin-x64'), program('darwin-x64-baseline')],
  'darwin-arm64': [program('darwin-arm64')],
}

export const opencode: HarnessRecipe = {
  name: NAME,
  packageName: 'opencode-ai',
  defaultVersion: '1.18.33',
  api: 'OpenAI Chat Completions',
  plan,
  check: (folder) => void nativeProgram(NAME, folder, NATIVE),
  classifyEnd: (end, stdoutFile, _stderrFile, { events }) => (events ? classifyEvents(end, stdoutFile) : end),
}

function plan({ endpoint, instruction, folder, extraArgs, events, timeoutMs }: RecipeContext): LaunchPlan {
  return {
    argv: [
      // As an argument the instruction would be put between quotes, and word by word a number would be an error.
      '/bin/sh',
      '-c',
      `exec "$@" < "$HOME/${INSTRUCTION_FILE}"`,
      NAME,
      nativeProgram(NAME, folder, NATIVE),
      'run',
      ...(events ? ['--format', 'json'] : []),
      ...extraArgs,
    ],
    env: {
      [KEY_VARIABLE]: endpoint.apiKey,
      OPENCODE_DISABLE_AUTOUPDATE: '1',
      // The catalogue of models, plugins and language servers come from other hosts.
      OPENCODE_DISABLE_MODELS_FETCH: '1',
      OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
      OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
      OPENCODE_DISABLE_SHARE: '1',
    },
    homeFiles: {
      [INSTRUCTION_FILE]: instruction,
      [`${CONFIG_FOLDER}/opencode.json`]: JSON.stringify(configFor(endpoint, timeoutMs)),
      // It would install what plugins are built with from the registry. With these it takes it for installed.
      [`${CONFIG_FOLDER}/package-lock.json`]: JSON.stringify({ packages: { '': { dependencies: { [PLUGIN]: '*' } } } }),
      [`${CONFIG_FOLDER}/node_modules/.keep`]: '',
    },
  }
}

function configFor(endpoint: HarnessEndpoint, timeoutMs: number): object {
  const model = {
    name: endpoint.model,
    tool_call: true,
    reasoning: true,
    limit: { context: endpoint.contextWindow, output: endpoint.maxOutputTokens },
  }
  return {
    model: `${PROVIDER}/${endpoint.model}`,
    // Titles come from here too: there is no other model.
    small_model: `${PROVIDER}/${endpoint.model}`,
    autoupdate: false,
    share: 'disabled',
    permission: { '*': 'allow' },
    provider: {
      [PROVIDER]: {
        npm: '@ai-sdk/openai-compatible',
        name: PROVIDER,
        options: {
          baseURL: `${endpoint.baseUrl}/v1`,
          apiKey: `{env:${KEY_VARIABLE}}`,
          // By default it repeats a request that is silent for 300 s.
          timeout: timeoutMs,
        },
        models: { [endpoint.model]: model },
      },
    },
  }
}

/** It goes on after some failures and exits with 0: an error that no answer followed is the end. */
function classifyEvents(end: ProcessEnd, stdoutFile: string): ProcessEnd {
  const error = (lastEvent(readFileSync(stdoutFile, 'utf8'), 'error') as ErrorEvent | undefined)?.error
  if (error === undefined) return end
  const detail = error.data?.message ?? error.message ?? error.name ?? 'the session failed'
  return { ...end, exitCode: end.exitCode === 0 ? 1 : end.exitCode, detail }
}

interface ErrorEvent {
  readonly error?: {
    readonly name?: string
    readonly message?: string
    readonly data?: { readonly message?: string }
  }
}
