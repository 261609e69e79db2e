/**
 * @file Codex, headless.
 *
 * Its configuration lies in its private home and names the variable that holds the key. Tools that only its own
 * provider can serve, or that answer with what we cannot pass on, are not offered to the policy.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { stringify } from 'smol-toml'
import type { ProcessEnd } from '../../../../ports/sandbox.ts'
import { compactionThreshold } from '../compaction.ts'
import { nativeProgram, type NativePaths } from '../native-program.ts'
import type { HarnessRecipe, LaunchPlan, RecipeContext } from '../recipe.ts'

const NAME = 'codex'
const PACKAGE = '@openai/codex'
const PROVIDER = 'gyre'
const KEY_VARIABLE = 'GYRE_API_KEY'
const CONFIG_FOLDER = '.codex'

const program = (target: string, triple: string): readonly string[] => [
  `${PACKAGE}-${target}/vendor/${triple}/bin/codex`,
]
const NATIVE: NativePaths = {
  'linux-x64': program('linux-x64', 'x86_64-unknown-linux-musl'),
  'linux-arm64': program('linux-arm64', 'aarch64-unknown-linux-musl'),
  'darwin-x64': program('darwin-x64', 'x86_64-apple-darwin'),
  'darwin-arm64': program('darwin-arm64', 'aarch64-apple-darwin'),
}

/** The harness gives up on a stream that is silent for so long at least. [ms] */
const SHORTEST_IDLE_MS = 300_000
/** It counts a broken connection and a broken stream apart, and ends badly after so many in a row. */
const RETRIES = 10

export const codex: HarnessRecipe = {
  name: NAME,
  packageName: PACKAGE,
  defaultVersion: '0.171.0',
  api: 'OpenAI Responses',
  plan,
  check: (folder) => void nativeProgram(NAME, folder, NATIVE),
  classifyEnd: (end, stdoutFile, _stderrFile, { events }) => (events ? classifyEvents(end, stdoutFile) : end),
}

function plan(context: RecipeContext): LaunchPlan {
  const { endpoint, instruction, sandbox, folder, extraArgs, events } = context
  return {
    argv: [
      nativeProgram(NAME, folder, NATIVE),
      'exec',
      '--skip-git-repo-check',
      ...(events ? ['--json'] : []),
      ...extraArgs,
      // Else an instruction that begins with a dash would be an option.
      '--',
      instruction,
    ],
    env: { CODEX_HOME: join(sandbox.home, CONFIG_FOLDER), [KEY_VARIABLE]: endpoint.apiKey },
    homeFiles: { [`${CONFIG_FOLDER}/config.toml`]: stringify(configFor(context)) },
  }
}

function configFor({ endpoint, timeoutMs }: RecipeContext): Record<string, unknown> {
  return {
    model: endpoint.model,
    model_provider: PROVIDER,
    model_context_window: endpoint.contextWindow,
    model_auto_compact_token_limit: compactionThreshold(endpoint.contextWindow, endpoint.maxOutputTokens),
    // The sandbox around it is what confines it.
    approval_policy: 'never',
    sandbox_mode: 'danger-full-access',
    check_for_update_on_startup: false,
    // Searched by the provider's own servers.
    web_search: 'disabled',
    analytics: { enabled: false },
    feedback: { enabled: false },
    features: {
      // Both fetch catalogues from other hosts.
      plugins: false,
      apps: false,
      // Its result is an image.
      view_image: false,
    },
    // A command of the policy has no business at the gateway.
    shell_environment_policy: { exclude: [KEY_VARIABLE] },
    model_providers: {
      [PROVIDER]: {
        name: PROVIDER,
        base_url: `${endpoint.baseUrl}/v1`,
        wire_api: 'responses',
        env_key: KEY_VARIABLE,
        supports_websockets: false,
        request_max_retries: RETRIES,
        stream_max_retries: RETRIES,
        stream_idle_timeout_ms: Math.max(SHORTEST_IDLE_MS, timeoutMs),
      },
    },
  }
}

/** The last turn says how it ended, also when the exit code does not. */
function classifyEvents(end: ProcessEnd, stdoutFile: string): ProcessEnd {
  const last = lastTurnEnd(readFileSync(stdoutFile, 'utf8'))
  if (last?.type !== 'turn.failed') return end
  return { ...end, exitCode: end.exitCode === 0 ? 1 : end.exitCode, detail: last.error?.message ?? 'the turn failed' }
}

interface TurnEnd {
  readonly type?: string
  readonly error?: { readonly message?: string }
}

function lastTurnEnd(events: string): TurnEnd | undefined {
  for (const line of events.split('\n').toReversed()) {
    if (!/^\{"type":"turn\.(completed|failed)"/.test(line)) continue
    try {
      return JSON.parse(line) as TurnEnd
    } catch {
      // The last line of a killed program may be cut off.
    }
  }
  return undefined
}
