/**
 * @file Qwen Code, headless.
 *
 * It reads endpoint, key and model from the environment and everything else from a settings file in its private home.
 */
import { readFileSync } from 'node:fs'
import type { ProcessEnd } from '../../../../ports/sandbox.ts'
import { lastEvent } from '../event-lines.ts'
import { packageProgram } from '../package-program.ts'
import type { HarnessRecipe, LaunchPlan, RecipeContext } from '../recipe.ts'

const PACKAGE = '@qwen-code/qwen-code'

export const qwenCode: HarnessRecipe = {
  name: 'qwen-code',
  packageName: PACKAGE,
  defaultVersion: '0.24.4',
  api: 'OpenAI Chat Completions',
  plan,
  classifyEnd: (end, stdoutFile, _stderrFile, { events }) => (events ? classifyEvents(end, stdoutFile) : end),
}

function plan(context: RecipeContext): LaunchPlan {
  const { endpoint, instruction, folder, node, extraArgs, events } = context
  return {
    argv: [
      node,
      packageProgram(folder, PACKAGE, 'qwen'),
      '--auth-type',
      'openai',
      '--yolo',
      '--output-format',
      events ? 'stream-json' : 'text',
      ...extraArgs,
      // In one word with its option, because an instruction may begin with a dash.
      `--prompt=${plainText(instruction)}`,
    ],
    env: {
      OPENAI_BASE_URL: `${endpoint.baseUrl}/v1`,
      OPENAI_API_KEY: endpoint.apiKey,
      OPENAI_MODEL: endpoint.model,
      QWEN_CODE_MAX_OUTPUT_TOKENS: String(endpoint.maxOutputTokens),
      // Else it starts itself a second time with another heap limit.
      QWEN_CODE_NO_RELAUNCH: 'true',
      QWEN_CODE_SUPPRESS_YOLO_WARNING: '1',
    },
    homeFiles: { '.qwen/settings.json': JSON.stringify(settingsFor(context)) },
  }
}

/** It would run a text that begins with a slash as a command of its own, and take quotes off that stand around a whole. */
function plainText(instruction: string): string {
  return /^[/"']/.test(instruction) ? ` ${instruction}` : instruction
}

function settingsFor({ endpoint, timeoutMs }: RecipeContext): object {
  return {
    general: { enableAutoUpdate: false, disableAutoUpdate: true },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    // What it would remember dies with its home. The extra calls would be the policy's.
    memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false },
    model: {
      generationConfig: {
        contextWindowSize: endpoint.contextWindow,
        // By default it repeats a request that waits 120 s for its turn. The sandbox ends it when its time is over.
        timeout: timeoutMs,
        streamIdleTimeoutMs: 0,
      },
    },
  }
}

/** The last event says how the session ended, also when the exit code does not. */
function classifyEvents(end: ProcessEnd, stdoutFile: string): ProcessEnd {
  const events = readFileSync(stdoutFile, 'utf8')
  const last = lastEvent(events, 'result') as ResultEvent | undefined
  if (last === undefined || !(last.is_error === true || isHiddenFailure(last, events))) return end
  const detail = last.error?.message ?? last.result ?? last.subtype ?? 'the session failed'
  return { ...end, exitCode: end.exitCode === 0 ? 1 : end.exitCode, detail }
}

interface ResultEvent {
  readonly is_error?: boolean
  readonly subtype?: string
  readonly result?: string
  readonly error?: { readonly message?: string }
}

interface AssistantEvent {
  readonly message?: { readonly usage?: { readonly output_tokens?: number } }
}

/** 0.15.10 calls it a success when its last call failed: the failure stands as an answer that took no tokens. */
function isHiddenFailure({ result }: ResultEvent, events: string): boolean {
  if (result?.startsWith('[API Error: ') !== true) return false
  const last = lastEvent(events, 'assistant') as AssistantEvent | undefined
  return last?.message?.usage?.output_tokens === 0
}
