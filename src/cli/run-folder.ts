/** @file Finds and reads run folders, for the verbs that look at them. */
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { parseConfig } from '../config/load.ts'
import { absolutePath, type RunConfig } from '../config/resolve.ts'
import { GyreError } from '../core/errors.ts'
import { type ChatCodec } from '../tokens/codec.ts'
import { createChatCodec } from '../tokens/hf-codec.ts'
import type { CliContext } from './context.ts'

export const LEDGER = 'ledger.sqlite'
export const RESOLVED_CONFIG = 'config.resolved.yaml'

/**
 * @param run the name of a run in `runs`, the path of a run folder, or undefined for the latest run.
 * @returns its absolute path.
 * @throws GyreError E_CONFIG_RUN_NOT_FOUND.
 */
export function findRun(run: string | undefined, runs: string, context: CliContext): string {
  const folder = absolutePath(runs, context.cwd, context.home)
  if (run !== undefined) {
    const found = [absolutePath(run, context.cwd, context.home), join(folder, run)].find(isRun)
    if (found !== undefined) return found
    throw notFound(`no run "${run}" in ${folder}: ${knownRuns(folder)}`)
  }
  const [latest] = runsIn(folder)
  if (latest === undefined) throw notFound(`no run in ${folder} yet: start one with gyre train, or give --runs FOLDER`)
  return join(folder, latest)
}

/** The config the run was started with; undefined when the run ended before it was written. */
export function readRunConfig(runFolder: string, context: CliContext): RunConfig | undefined {
  const file = join(runFolder, RESOLVED_CONFIG)
  if (!existsSync(file)) return undefined
  // A reader needs no secret: any value will do.
  const env = new Proxy({}, { get: () => '' })
  return parseConfig(readFileSync(file, 'utf8'), { cwd: context.cwd, home: context.home, env, file, label: file })
    .config
}

/** The tokenizer of a checkpoint of the run, newest folder first; undefined when there is none. */
export function readRunCodec(runFolder: string, preferred: string | undefined): ChatCodec | undefined {
  const folders = [preferred, ...checkpointFolders(runFolder), 'policy'].flatMap((name) =>
    name === undefined ? [] : [join(runFolder, name)],
  )
  const folder = folders.find((path) => existsSync(join(path, 'tokenizer.json')))
  if (folder === undefined) return undefined
  return createChatCodec({
    tokenizerJson: readFileSync(join(folder, 'tokenizer.json'), 'utf8'),
    tokenizerConfigJson: readFileSync(join(folder, 'tokenizer_config.json'), 'utf8'),
  })
}

function checkpointFolders(runFolder: string): readonly string[] {
  const root = join(runFolder, 'checkpoints')
  if (!existsSync(root)) return []
  return readdirSync(root)
    .sort((a, b) => stepOf(b) - stepOf(a))
    .map((name) => join('checkpoints', name))
}

function stepOf(name: string): number {
  return Number(/\d+$/.exec(name)?.[0] ?? -1)
}

function isRun(folder: string): boolean {
  return existsSync(join(folder, LEDGER))
}

/** Names, latest first. */
function runsIn(folder: string): readonly string[] {
  if (!existsSync(folder)) return []
  const changed = (name: string): number => {
    const files = [LEDGER, `${LEDGER}-wal`, 'events.jsonl'].map((file) => join(folder, name, file))
    return Math.max(...files.filter((file) => existsSync(file)).map((file) => statSync(file).mtimeMs))
  }
  return readdirSync(folder)
    .filter((name) => isRun(join(folder, name)))
    .map((name) => ({ name, at: changed(name) }))
    .sort((a, b) => b.at - a.at)
    .map(({ name }) => name)
}

function knownRuns(folder: string): string {
  const names = runsIn(folder)
  return names.length === 0 ? 'there is none yet' : `known are ${names.slice(0, 8).join(', ')}`
}

function notFound(message: string): GyreError {
  return new GyreError(message, { boundary: 'config', code: 'E_CONFIG_RUN_NOT_FOUND' })
}
