/**
 * @file Claude Code, headless.
 *
 * What the harness says to the policy is left as its users get it. The knobs below only take out what differs between
 * two runs of the same task, what reaches for other hosts, and limits that are not those of the policy.
 */
import { readFileSync } from 'node:fs'
import { lastLine } from '../../../../host/last-line.ts'
import type { HarnessEndpoint } from '../../../../ports/harness.ts'
import type { ProcessEnd } from '../../../../ports/sandbox.ts'
import { compactionThreshold } from '../compaction.ts'
import { lastEvent } from '../event-lines.ts'
import { nativeProgram, type NativePaths } from '../native-program.ts'
import type { HarnessRecipe, LaunchPlan, RecipeContext } from '../recipe.ts'

const NAME = 'claude-code'
const PACKAGE = '@anthropic-ai/claude-code'
const NATIVE: NativePaths = {
  'linux-x64': [`${PACKAGE}-linux-x64/claude`, `${PACKAGE}-linux-x64-musl/claude`],
  'linux-arm64': [`${PACKAGE}-linux-arm64/claude`, `${PACKAGE}-linux-arm64-musl/claude`],
  'darwin-x64': [`${PACKAGE}-darwin-x64/claude`],
  'darwin-arm64': [`${PACKAGE}-darwin-arm64/claude`],
}

/** What the harness itself computes its compaction with. [tokens] */
const SMALLEST_WINDOW = 100_000
const LARGEST_RESERVE = 20_000
/** What a timer of JavaScript can be set to. [ms] */
const LONGEST_TIMER_MS = 2 ** 31 - 1

export const claudeCode: HarnessRecipe = {
  name: NAME,
  packageName: PACKAGE,
  defaultVersion: '2.1.332',
  api: 'Anthropic Messages',
  plan,
  check: (folder) => void nativeProgram(NAME, folder, NATIVE),
  classifyEnd: (end, stdoutFile, _stderrFile, { events }) =>
    events ? classifyEvents(end, stdoutFile) : classifyText(end, stdoutFile),
}

function plan({ endpoint, instruction, folder, extraArgs, events, timeoutMs }: RecipeContext): LaunchPlan {
  return {
    argv: [
      nativeProgram(NAME, folder, NATIVE),
      '--print',
      '--model',
      endpoint.model,
      '--output-format',
      ...(events ? ['stream-json', '--verbose'] : ['text']),
      '--dangerously-skip-permissions',
      // The provider's own servers do the first and are asked before the second: neither can work here.
      '--disallowedTools',
      'WebSearch,WebFetch',
      ...extraArgs,
      // Else an instruction that begins with a dash would be an option, and one that begins with the name of one of
      // its own commands would be that command.
      '--',
      instruction.startsWith('/') ? ` ${instruction}` : instruction,
    ],
    env: { ...endpointEnv(endpoint), ...STEADY_ENV, ...patienceEnv(timeoutMs) },
    homeFiles: {},
  }
}

const STEADY_ENV: Readonly<Record<string, string>> = {
  // As root it refuses to skip permissions unless it is told that it is in a sandbox.
  IS_SANDBOX: '1',
  // No telemetry, no title calls, no look for updates, no error reports.
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
  DISABLE_AUTOUPDATER: '1',
  // A hash of the first message in the first system block: it would part sub-agents and every compaction from the
  // common prefix by its third line, for nothing.
  CLAUDE_CODE_ATTRIBUTION_HEADER: '0',
  // Cache marks move from message to message. They mean nothing here: the engine finds prefixes itself.
  DISABLE_PROMPT_CACHING: '1',
}

/**
 * A call may wait as long as the execution may run. Without this 2.1.197 asks again after 300 s without a token: it
 * does not take a ping for a sign of life.
 */
function patienceEnv(timeoutMs: number): Record<string, string> {
  const patience = String(Math.min(timeoutMs, LONGEST_TIMER_MS))
  return { API_TIMEOUT_MS: patience, CLAUDE_STREAM_IDLE_TIMEOUT_MS: patience }
}

function endpointEnv({ baseUrl, apiKey, contextWindow, maxOutputTokens }: HarnessEndpoint): Record<string, string> {
  return {
    ANTHROPIC_BASE_URL: baseUrl,
    ANTHROPIC_API_KEY: apiKey,
    CLAUDE_CODE_MAX_OUTPUT_TOKENS: String(maxOutputTokens),
    ...compactionEnv(contextWindow, maxOutputTokens),
  }
}

/**
 * The harness takes a model it does not know for one of 200,000 or 1,000,000 tokens, so it must be told. It compacts
 * at `window - reserve - 13,000`, or at a percentage of `window - reserve` if that comes first. It takes no window
 * below 100,000, so a smaller one is said as a percentage.
 */
function compactionEnv(contextWindow: number, maxOutputTokens: number): Record<string, string> {
  const window = Math.max(SMALLEST_WINDOW, contextWindow)
  const env = { CLAUDE_CODE_AUTO_COMPACT_WINDOW: String(window) }
  if (contextWindow >= SMALLEST_WINDOW) return env
  const share =
    compactionThreshold(contextWindow, maxOutputTokens) / (window - Math.min(maxOutputTokens, LARGEST_RESERVE))
  return { ...env, CLAUDE_AUTOCOMPACT_PCT_OVERRIDE: String(Math.max(1, Math.floor(100 * share))) }
}

/** In text mode the last thing it prints is what went wrong. */
function classifyText(end: ProcessEnd, stdoutFile: string): ProcessEnd {
  if (end.exitCode === 0) return end
  const said = lastLine(stdoutFile)
  return said === '' ? end : { ...end, detail: said }
}

/** The last event says how the session ended, also when the exit code does not. */
function classifyEvents(end: ProcessEnd, stdoutFile: string): ProcessEnd {
  const last = lastEvent(readFileSync(stdoutFile, 'utf8'), 'result') as ResultEvent | undefined
  if (last?.is_error !== true) return end
  return { ...end, exitCode: end.exitCode === 0 ? 1 : end.exitCode, detail: last.result ?? last.subtype ?? 'error' }
}

interface ResultEvent {
  readonly is_error?: boolean
  readonly subtype?: string
  readonly result?: string
}
