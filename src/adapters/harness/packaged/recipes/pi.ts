/**
 * @file The pi coding agent.
 *
 * Its home is private and fresh, so no setting, skill or key of the user reaches it. The provider file names the
 * variable that holds the key.
 */
import { readFileSync } from 'node:fs'
import type { HarnessEndpoint } from '../../../../ports/harness.ts'
import type { ProcessEnd } from '../../../../ports/sandbox.ts'
import { packageProgram } from '../package-program.ts'
import type { HarnessRecipe, LaunchPlan, RecipeContext } from '../recipe.ts'

const PACKAGE = '@mariozechner/pi-coding-agent'
const PROVIDER = 'gyre'
const KEY_VARIABLE = 'GYRE_API_KEY'

export const pi: HarnessRecipe = {
  name: 'pi',
  packageName: PACKAGE,
  defaultVersion: '0.73.1',
  api: 'OpenAI Chat Completions',
  plan,
  classifyEnd: (end, stdoutFile, _stderrFile, { events }) => (events ? classifyEvents(end, stdoutFile) : end),
}

function plan(context: RecipeContext): LaunchPlan {
  const { endpoint, instruction, folder, node, extraArgs, events } = context
  return {
    argv: [
      node,
      packageProgram(folder, PACKAGE, 'pi'),
      '--provider',
      PROVIDER,
      '--model',
      endpoint.model,
      '--mode',
      // Each event of a streamed answer repeats the whole answer so far: the output grows with its square.
      events ? 'json' : 'text',
      '--no-session',
      ...extraArgs,
      '-p',
      // pi takes a message that begins so for an option or a file to read.
      /^[-@]/.test(instruction) ? ` ${instruction}` : instruction,
    ],
    env: { PI_OFFLINE: '1', PI_SKIP_VERSION_CHECK: '1', [KEY_VARIABLE]: endpoint.apiKey },
    homeFiles: {
      '.pi/agent/models.json': JSON.stringify({ providers: { [PROVIDER]: providerFor(endpoint) } }),
      '.pi/agent/settings.json': JSON.stringify({ compaction: compactionFor(endpoint.contextWindow) }),
    },
  }
}

function providerFor(endpoint: HarnessEndpoint): object {
  const model = {
    id: endpoint.model,
    name: endpoint.model,
    reasoning: false,
    input: ['text'],
    cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
    contextWindow: endpoint.contextWindow,
    maxTokens: endpoint.maxOutputTokens,
  }
  return { baseUrl: `${endpoint.baseUrl}/v1`, api: 'openai-completions', apiKey: KEY_VARIABLE, models: [model] }
}

/**
 * pi compacts when less than its reserve is left, and its own reserve is larger than a small model's whole window:
 * it would compact after every run. The reserve shrinks with the window.
 */
function compactionFor(contextWindow: number): Readonly<Record<string, boolean | number>> {
  return {
    enabled: true,
    reserveTokens: Math.min(16_384, Math.floor(contextWindow / 8)),
    keepRecentTokens: Math.min(20_000, Math.floor(contextWindow / 4)),
  }
}

/** In event mode pi exits with 0 also when its last model call failed: the exit code is made that of text mode. */
function classifyEvents(end: ProcessEnd, stdoutFile: string): ProcessEnd {
  const last = lastAssistantMessage(readFileSync(stdoutFile, 'utf8'))
  if (end.exitCode !== 0 || (last?.stopReason !== 'error' && last?.stopReason !== 'aborted')) return end
  return { ...end, exitCode: 1, detail: last.errorMessage ?? `the last model call ended as ${last.stopReason}` }
}

interface AssistantEnd {
  readonly stopReason?: string
  readonly errorMessage?: string
}

function lastAssistantMessage(events: string): AssistantEnd | undefined {
  for (const line of events.split('\n').toReversed()) {
    if (!line.startsWith('{"type":"message_end"')) continue
    try {
      const event = JSON.parse(line) as { readonly message?: AssistantEnd & { readonly role?: string } }
      if (event.message?.role === 'assistant') return event.message
    } catch {
      // The last line of a killed program may be cut off.
    }
  }
  return undefined
}
