/**
 * @file Gemini CLI, headless.
 *
 * It reads endpoint and key from the environment and everything else from a settings file in its private home.
 */
import { readFileSync } from 'node:fs'
import type { HarnessEndpoint } from '../../../../ports/harness.ts'
import type { ProcessEnd } from '../../../../ports/sandbox.ts'
import { compactionThreshold } from '../compaction.ts'
import { lastEvent } from '../event-lines.ts'
import { packageProgram } from '../package-program.ts'
import type { HarnessRecipe, LaunchPlan, RecipeContext } from '../recipe.ts'

const PACKAGE = '@google/gemini-cli'

/** What the harness takes every model for. It compresses at a share of it, which must be that of the policy. [tokens] */
const ASSUMED_WINDOW = 1_048_576

export const geminiCli: HarnessRecipe = {
  name: 'gemini-cli',
  packageName: PACKAGE,
  defaultVersion: '0.61.0',
  api: 'Gemini generateContent',
  plan,
  classifyEnd,
}

function plan({ endpoint, instruction, folder, node, extraArgs, events }: RecipeContext): LaunchPlan {
  return {
    argv: [
      node,
      packageProgram(folder, PACKAGE, 'gemini'),
      '--yolo',
      '--skip-trust',
      '--model',
      endpoint.model,
      '--output-format',
      events ? 'stream-json' : 'text',
      ...extraArgs,
      // In one word with its option, because an instruction may begin with a dash.
      `--prompt=${instruction}`,
    ],
    env: {
      GOOGLE_GEMINI_BASE_URL: endpoint.baseUrl,
      GEMINI_API_KEY: endpoint.apiKey,
      // Else it starts itself a second time with another heap limit.
      GEMINI_CLI_NO_RELAUNCH: 'true',
    },
    homeFiles: { '.gemini/settings.json': JSON.stringify(settingsFor(endpoint)) },
  }
}

function settingsFor(endpoint: HarnessEndpoint): object {
  return {
    general: { enableAutoUpdate: false, enableAutoUpdateNotification: false, retryFetchErrors: true },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    security: { auth: { selectedType: 'gemini-api-key' } },
    model: {
      compressionThreshold: compactionThreshold(endpoint.contextWindow, endpoint.maxOutputTokens) / ASSUMED_WINDOW,
    },
    modelConfigs: {
      customOverrides: [
        {
          match: { model: endpoint.model },
          modelConfig: { generateContentConfig: { maxOutputTokens: endpoint.maxOutputTokens } },
        },
      ],
    },
  }
}

function classifyEnd(end: ProcessEnd, stdoutFile: string, stderrFile: string, { events }: RecipeContext): ProcessEnd {
  // It tidies up at SIGTERM and exits with 0.
  if (end.timedOut && end.exitCode === 0) return { ...end, exitCode: undefined, signal: 'SIGTERM' }
  return events ? classifyEvents(end, stdoutFile) : classifyText(end, stderrFile)
}

/** The last event says how the session ended, also when the exit code does not. */
function classifyEvents(end: ProcessEnd, stdoutFile: string): ProcessEnd {
  const last = lastEvent(readFileSync(stdoutFile, 'utf8'), 'result') as ResultEvent | undefined
  if (last?.status !== 'error') return end
  const detail = last.error?.message ?? 'the session failed'
  return { ...end, exitCode: end.exitCode === 0 ? 1 : end.exitCode, detail }
}

interface ResultEvent {
  readonly status?: string
  readonly error?: { readonly message?: string }
}

/** The reason stands above a stack trace, and the last line says nothing. */
function classifyText(end: ProcessEnd, stderrFile: string): ProcessEnd {
  if (end.exitCode === 0) return end
  const said = /^Error when talking to Gemini API.*?(\w*Error: .*)$/m.exec(readFileSync(stderrFile, 'utf8'))?.[1]
  return said === undefined ? end : { ...end, detail: said }
}
