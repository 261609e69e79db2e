/**
 * @file A checkpoint as other servers can load it: the model alone, without the optimizer that lies beside it, and
 * with an output layer of its own.
 *
 * Our models share the output layer with the embedding. A server that reloads weights in place may keep the output
 * layer it was started with (vLLM 0.32 does), so the folder says that they are not shared and holds both.
 */
import {
  closeSync,
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { GyreError } from '../../../core/errors.ts'

const NAME = 'servable'
const MODEL = 'model.safetensors'
const EMBEDDING = 'model.embed_tokens.weight'
const HEAD = 'lm_head.weight'
const HEAD_FILE = 'lm_head.safetensors'
const BESIDE = ['tokenizer.json', 'tokenizer_config.json'] as const

/**
 * Makes the folder inside the checkpoint, once; weights that are there already are linked, not copied.
 * @returns its path. @throws GyreError E_ENGINE_MODEL when the checkpoint is none.
 */
export function servableFolder(checkpoint: string): string {
  const folder = join(checkpoint, NAME)
  if (existsSync(join(folder, 'config.json'))) return folder
  const partial = `${folder}.${process.pid}.partial`
  rmSync(partial, { recursive: true, force: true })
  try {
    const config = JSON.parse(readFileSync(join(checkpoint, 'config.json'), 'utf8')) as Record<string, unknown>
    mkdirSync(partial)
    linkOrCopy(join(checkpoint, MODEL), join(partial, MODEL))
    for (const name of BESIDE)
      if (existsSync(join(checkpoint, name))) linkOrCopy(join(checkpoint, name), join(partial, name))
    if (config['tie_word_embeddings'] === true) writeHead(join(checkpoint, MODEL), join(partial, HEAD_FILE))
    writeFileSync(join(partial, 'config.json'), JSON.stringify({ ...config, tie_word_embeddings: false }, null, 2))
    renameSync(partial, folder)
  } catch (error) {
    rmSync(partial, { recursive: true, force: true })
    throw new GyreError(`${checkpoint} cannot be made into a folder that servers load`, {
      boundary: 'engine',
      code: 'E_ENGINE_MODEL',
      cause: error,
    })
  }
  return folder
}

/** Another name for the same bytes; a copy where the disk has no links. */
function linkOrCopy(from: string, to: string): void {
  try {
    linkSync(from, to)
  } catch {
    copyFileSync(from, to)
  }
}

interface TensorEntry {
  readonly dtype: string
  readonly shape: readonly number[]
  readonly data_offsets: readonly [number, number]
}

/** A tensor of a safetensors file: its description, and where its bytes are in the file. [bytes] */
function tensorIn(file: string, name: string): { readonly entry: TensorEntry; readonly start: number } {
  const prefix = bytesOf(file, 0, 8)
  const length = Number(prefix.readBigUInt64LE())
  const header = JSON.parse(bytesOf(file, 8, length).toString('utf8')) as Record<string, TensorEntry>
  const entry = header[name]
  if (entry === undefined) {
    throw new GyreError(`${file} has no tensor ${name}`, { boundary: 'engine', code: 'E_ENGINE_MODEL' })
  }
  return { entry, start: 8 + length + entry.data_offsets[0] }
}

/**
 * A servable folder whose output layer has the rows of two tokens exchanged: a server that loads it whole samples one
 * where it would have sampled the other.
 * @param into a folder that is not there yet; its owner removes it.
 */
export function withExchangedTokens(servable: string, into: string, [a, b]: readonly [number, number]): void {
  mkdirSync(into, { recursive: true })
  for (const name of [MODEL, 'config.json', ...BESIDE]) {
    if (existsSync(join(servable, name))) linkOrCopy(join(servable, name), join(into, name))
  }
  const bytes = readFileSync(join(servable, HEAD_FILE))
  const { entry, start } = tensorIn(join(servable, HEAD_FILE), HEAD)
  const row = (entry.data_offsets[1] - entry.data_offsets[0]) / (entry.shape[0] ?? 1)
  const [atA, atB] = [start + a * row, start + b * row]
  const kept = Buffer.from(bytes.subarray(atA, atA + row))
  bytes.copy(bytes, atA, atB, atB + row)
  kept.copy(bytes, atB)
  writeFileSync(join(into, HEAD_FILE), bytes)
}

function writeHead(model: string, file: string): void {
  const { entry, start } = tensorIn(model, EMBEDDING)
  const size = entry.data_offsets[1] - entry.data_offsets[0]
  const json = JSON.stringify({ [HEAD]: { dtype: entry.dtype, shape: entry.shape, data_offsets: [0, size] } })
  const text = Buffer.from(json.padEnd(Math.ceil(json.length / 8) * 8))
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(text.length))
  writeFileSync(file, Buffer.concat([length, text, bytesOf(model, start, size)]))
}

function bytesOf(file: string, position: number, length: number): Buffer {
  const bytes = Buffer.alloc(length)
  const fd = openSync(file, 'r')
  try {
    for (let at = 0; at < length;) {
      const got = readSync(fd, bytes, at, length - at, position + at)
      if (got === 0) throw new Error(`${file} is shorter than its header says`)
      at += got
    }
  } finally {
    closeSync(fd)
  }
  return bytes
}
