/** @file `gyre replay`: recordings through gateway, tree and admission, and what comes of their tokens. */
import { existsSync, readdirSync } from 'node:fs'
import { basename, join } from 'node:path'
import { absolutePath } from '../config/resolve.ts'
import { GyreError } from '../core/errors.ts'
import { byteChatCodec } from '../recording/byte-chat-codec.ts'
import { figuresOf, missedGoals } from '../recording/figures.ts'
import type { ReplayFigures } from '../recording/figures.ts'
import { isRecording, readRecording } from '../recording/files.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import { replayRecording } from './compose/replay-session.ts'
import { readTokenizerFolder } from './compose/tokenizer-folder.ts'
import type { CliContext } from './context.ts'
import { figuresTable } from './figures-table.ts'

export interface ReplayOptions {
  readonly tokenizer?: string
  readonly jmax: string
  readonly seed: string
  readonly assert?: true
  readonly json?: true
}

/** Sets exit code 1 when `--assert` is given and a goal is missed. */
export async function replayFolders(
  folders: readonly string[],
  options: ReplayOptions,
  context: CliContext,
): Promise<void> {
  const path = (text: string): string => absolutePath(text, context.cwd, context.home)
  const recordings = folders.flatMap((folder) => recordingsIn(path(folder)))
  const chosen = options.tokenizer === undefined ? undefined : path(options.tokenizer)
  const codec = chosen === undefined ? byteChatCodec() : readTokenizerFolder(chosen)
  const tokenizer = chosen === undefined ? 'bytes' : basename(chosen)
  const rows: { readonly name: string; readonly figures: ReplayFigures }[] = []
  let hasMissed = false
  for (const folder of recordings) {
    const { figures, complaints } = await replayOne(folder, { codec, tokenizer, options })
    const name = basename(folder)
    rows.push({ name, figures })
    if (options.json) context.print(JSON.stringify(recordings.length === 1 ? figures : { recording: name, ...figures }))
    for (const complaint of complaints) context.warn(`${name}: ${complaint}`)
    hasMissed ||= complaints.length > 0
  }
  if (!options.json) context.print(figuresTable(rows))
  if (options.assert && hasMissed) process.exitCode = 1
}

interface Setting {
  readonly codec: ChatCodec
  readonly tokenizer: string
  readonly options: ReplayOptions
}

async function replayOne(
  folder: string,
  { codec, tokenizer, options }: Setting,
): Promise<{ readonly figures: ReplayFigures; readonly complaints: readonly string[] }> {
  const recording = readRecording(folder)
  const isOwnTokenizer = recording.head.tokenizer === tokenizer
  const { tree, wrong, differences } = await replayRecording(recording, { codec, isOwnTokenizer })
  const jMax = options.jmax === 'all' ? Infinity : Number(options.jmax)
  const figures = figuresOf(tree, wrong.length, { jMax, seed: Number(options.seed) })
  const contexts = wrong.map(({ callId, why }) => `call ${callId}: ${why}`)
  return { figures, complaints: [...differences, ...contexts, ...missedGoals(figures)] }
}

/** The folder itself, or the recordings directly in it. */
function recordingsIn(folder: string): readonly string[] {
  if (isRecording(folder)) return [folder]
  const names = existsSync(folder) ? readdirSync(folder) : []
  const found = names
    .toSorted()
    .map((name) => join(folder, name))
    .filter(isRecording)
  if (found.length > 0) return found
  throw new GyreError(`${folder} is no recording and holds none: give a folder that gyre record wrote`, {
    boundary: 'config',
    code: 'E_CONFIG_RECORDING',
  })
}
