/** @file `gyre record`: a real harness on a scenario, as a recording that can be played again. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { PackagedHarness } from '../adapters/harness/packaged/packaged-harness.ts'
import { absolutePath } from '../config/resolve.ts'
import { GyreError } from '../core/errors.ts'
import { byteChatCodec } from '../recording/byte-chat-codec.ts'
import { missedGoals } from '../recording/figures.ts'
import { writeRecording } from '../recording/files.ts'
import { parseScenario } from '../recording/scenario.ts'
import type { Scenario, ScenarioRun } from '../recording/scenario.ts'
import { makeRecording } from './compose/golden.ts'
import { runScenario } from './compose/scenario-session.ts'
import type { SessionResult } from './compose/scenario-session.ts'
import { stopOnSignals } from './compose/stop-signals.ts'
import { readTokenizerFolder } from './compose/tokenizer-folder.ts'
import type { CliContext } from './context.ts'
import { figuresTable } from './figures-table.ts'
import { namedHarness } from './harness-name.ts'
import { packageVersion } from './version.ts'

export interface RecordOptions {
  readonly out: string
  readonly tokenizer?: string
  readonly replaceOver: string
  readonly keep?: string
  readonly cache: string
  readonly force?: true
  readonly json?: true
}

/** @throws GyreError E_CONFIG_SCENARIO, E_CONFIG_RECORDING_EXISTS, E_HARNESS_*, E_GATEWAY_RECORDING. */
export async function recordScenario(
  harnessText: string,
  file: string,
  options: RecordOptions,
  context: CliContext,
): Promise<void> {
  const path = (text: string): string => absolutePath(text, context.cwd, context.home)
  const { recipe, version } = namedHarness(harnessText)
  const scenario = readScenario(path(file))
  const out = path(options.out)
  if (options.force !== true) refuseToOverwrite(out)
  const codec = options.tokenizer === undefined ? byteChatCodec() : readTokenizerFolder(path(options.tokenizer))
  const folder = options.keep === undefined ? mkdtempSync(join(tmpdir(), 'gyre-record-')) : path(options.keep)
  const stop = stopOnSignals((signal) => context.warn(`${signal}: ending the session`))
  const makeHarness = (run: ScenarioRun): PackagedHarness =>
    new PackagedHarness(recipe, {
      version,
      cacheFolder: join(path(options.cache), 'harness'),
      extraArgs: run.args,
      env: run.env,
    })
  try {
    await using session = await runScenario({
      scenario,
      harness: makeHarness,
      profile: recipe.name,
      folder,
      codec,
      stop: stop.signal,
      progress: (message) => context.warn(message),
    })
    if (stop.signal.aborted) throw interrupted()
    report(session, context)
    const used = makeHarness({ instruction: '', args: [], env: {} }).version
    const { contextWindow, maxOutputTokens, name, description } = scenario
    const { files, figures } = await makeRecording(session, {
      codec,
      folders: [folder, homedir(), process.cwd()],
      replaceOver: Number(options.replaceOver),
      head: {
        harness: recipe.name,
        version: used,
        scenario: name,
        ...(description === undefined ? {} : { description }),
        profile: recipe.name,
        tokenizer: options.tokenizer === undefined ? 'bytes' : basename(path(options.tokenizer)),
        contextWindow,
        maxOutputTokens,
        gyre: packageVersion(),
      },
    })
    writeRecording(out, files)
    if (options.json) context.print(JSON.stringify({ recording: out, ...figures }))
    else context.print(`${figuresTable([{ name: basename(out), figures }])}\nwritten to ${out}`)
    for (const missed of missedGoals(figures)) context.warn(`warning: ${missed}`)
  } finally {
    stop.off()
    if (options.keep === undefined) rmSync(folder, { recursive: true, force: true })
  }
}

function interrupted(): GyreError {
  return new GyreError('the session was stopped, and nothing was recorded', {
    boundary: 'harness',
    code: 'E_HARNESS_INTERRUPTED',
  })
}

function readScenario(file: string): Scenario {
  if (!existsSync(file)) {
    throw new GyreError(`there is no scenario ${file}: give the path of a YAML file (docs/recordings.md)`, {
      boundary: 'config',
      code: 'E_CONFIG_SCENARIO',
    })
  }
  return parseScenario(readFileSync(file, 'utf8'), file)
}

/** A recording is evidence: it is made anew, not changed. */
function refuseToOverwrite(out: string): void {
  if (!existsSync(out) || readdirSync(out).length === 0) return
  throw new GyreError(`${out} is not empty: take another folder, or --force to write over what is there`, {
    boundary: 'config',
    code: 'E_CONFIG_RECORDING_EXISTS',
  })
}

/** What a session that went badly would hide in its figures. */
function report(session: SessionResult, context: CliContext): void {
  const { ends, exchanges, misses, missedFaults, failures } = session
  if (exchanges.length === 0) {
    const end = ends.at(-1)
    throw new GyreError(`the harness made no model call (exit code ${end?.exitCode ?? 'none'}): ${end?.detail ?? ''}`, {
      boundary: 'harness',
      code: 'E_HARNESS_NO_CALLS',
    })
  }
  for (const [i, end] of ends.entries()) {
    if (end.exitCode === 0) continue
    const how = end.timedOut ? 'ran into its timeout' : `ended with ${end.exitCode ?? end.signal ?? 'a signal'}`
    context.warn(`warning: run ${i + 1} ${how}${end.detail === undefined ? '' : `: ${end.detail}`}`)
  }
  for (const text of misses) context.warn(`warning: no rule of the scenario held after "${text.trim().slice(0, 160)}"`)
  for (const arrival of missedFaults) context.warn(`warning: there was no request ${arrival} to break`)
  for (const failure of failures) context.warn(`warning: the gateway failed: ${String(failure)}`)
}
