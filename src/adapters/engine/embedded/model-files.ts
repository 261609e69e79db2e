/**
 * @file A model folder in Hugging Face layout: `config.json`, `model.safetensors`, and the optimizer beside them.
 *
 * safetensors: u64 little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
 */
import { closeSync, fsyncSync, openSync, readFileSync, readSync, renameSync, statSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { GyreError } from '../../../core/errors.ts'
import { type ModelShape, unsupportedShape } from '../../../kernels/shape.ts'

/** A tensor to write, or one found in a file. */
export interface NamedTensor {
  readonly name: string
  readonly shape: readonly number[]
  readonly data: Float32Array
}

export function modelError(message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'engine', code: 'E_ENGINE_MODEL', cause })
}

/** @throws GyreError E_ENGINE_MODEL when the config is missing or describes a model this engine cannot run. */
export function readModelConfig(folder: string): { readonly shape: ModelShape; readonly maxPositions: number } {
  const file = join(folder, 'config.json')
  let config: Record<string, unknown>
  try {
    config = JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>
  } catch (error) {
    throw modelError(`cannot read ${file}: a model folder holds config.json and model.safetensors`, error)
  }
  const reject = (what: string): never => {
    throw modelError(`${file}: ${what}`)
  }
  const integer = (key: string, fallback?: number): number => {
    const value = config[key] ?? fallback
    return typeof value === 'number' && Number.isInteger(value) && value > 0
      ? value
      : reject(`${key} is ${JSON.stringify(value)}: it must be a positive integer`)
  }
  const expect = (key: string, wanted: unknown, fallback: unknown): void => {
    const value = config[key] ?? fallback
    if (value !== wanted) reject(`${key} is ${JSON.stringify(value)}: only ${JSON.stringify(wanted)} is supported`)
  }
  const architectures = config['architectures']
  if (!Array.isArray(architectures) || !architectures.includes('LlamaForCausalLM')) {
    reject(`architectures is ${JSON.stringify(architectures)}: only LlamaForCausalLM is supported`)
  }
  expect('tie_word_embeddings', true, false)
  expect('hidden_act', 'silu', 'silu')
  expect('attention_bias', false, false)
  expect('mlp_bias', false, false)
  expect('rope_scaling', null, null)
  const hiddenSize = integer('hidden_size')
  const heads = integer('num_attention_heads')
  const shape: ModelShape = {
    vocabSize: integer('vocab_size'),
    hiddenSize,
    layers: integer('num_hidden_layers'),
    heads,
    kvHeads: integer('num_key_value_heads', heads),
    headDim: integer('head_dim', hiddenSize / heads),
    ffSize: integer('intermediate_size'),
    ropeTheta: Number(config['rope_theta'] ?? 10_000),
    normEpsilon: Number(config['rms_norm_eps'] ?? 1e-6),
  }
  const problem = unsupportedShape(shape)
  if (problem !== undefined) reject(problem)
  return { shape, maxPositions: integer('max_position_embeddings', 2048) }
}

export function writeModelConfig(folder: string, s: ModelShape, maxPositions: number): void {
  const config = {
    architectures: ['LlamaForCausalLM'],
    model_type: 'llama',
    attention_bias: false,
    head_dim: s.headDim,
    hidden_act: 'silu',
    hidden_size: s.hiddenSize,
    intermediate_size: s.ffSize,
    max_position_embeddings: maxPositions,
    mlp_bias: false,
    num_attention_heads: s.heads,
    num_hidden_layers: s.layers,
    num_key_value_heads: s.kvHeads,
    rms_norm_eps: s.normEpsilon,
    rope_scaling: null,
    rope_theta: s.ropeTheta,
    tie_word_embeddings: true,
    torch_dtype: 'float32',
    vocab_size: s.vocabSize,
  }
  writeAtomically(join(folder, 'config.json'), [Buffer.from(`${JSON.stringify(config, null, 2)}\n`)])
}

/** Writes beside the target and renames, so a reader sees the old file or the whole new one. */
function writeAtomically(file: string, parts: readonly Uint8Array[]): void {
  const temporary = `${file}.partial`
  const fd = openSync(temporary, 'w')
  try {
    for (const part of parts) {
      for (let at = 0; at < part.byteLength;) at += writeSync(fd, part, at)
    }
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
  renameSync(temporary, file)
}

/** Writes F32 tensors. Their data may lie in shared memory. */
export function writeTensors(
  file: string,
  tensors: readonly NamedTensor[],
  metadata: Readonly<Record<string, string>>,
): void {
  const header: Record<string, unknown> = { __metadata__: metadata }
  let at = 0
  for (const t of tensors) {
    header[t.name] = { dtype: 'F32', shape: t.shape, data_offsets: [at, at + t.data.byteLength] }
    at += t.data.byteLength
  }
  const json = JSON.stringify(header)
  const text = Buffer.from(json.padEnd(Math.ceil(Buffer.byteLength(json) / 8) * 8))
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(text.byteLength))
  const bytes = tensors.map((t) => new Uint8Array(t.data.buffer, t.data.byteOffset, t.data.byteLength))
  writeAtomically(file, [length, text, ...bytes])
}

interface HeaderEntry {
  readonly dtype: string
  readonly shape: readonly number[]
  readonly data_offsets: readonly [number, number]
}

/**
 * Reads F32 tensors straight into place.
 * @param into where each tensor goes; every one must be in the file with the same shape.
 * @returns the file's metadata.
 * @throws GyreError E_ENGINE_MODEL.
 */
export function readTensors(file: string, into: readonly NamedTensor[]): Readonly<Record<string, string>> {
  let fd: number
  try {
    fd = openSync(file, 'r')
  } catch (error) {
    throw modelError(`cannot open ${file}`, error)
  }
  try {
    const { start, entries, metadata } = readHeader(file, fd)
    for (const t of into) {
      const entry = entries[t.name]
      if (entry === undefined) throw modelError(`${file} has no tensor ${t.name}`)
      const [from, to] = entry.data_offsets
      if (entry.dtype !== 'F32') throw modelError(`${file}: ${t.name} is ${entry.dtype}, only F32 is supported`)
      if (entry.shape.join() !== t.shape.join() || to - from !== t.data.byteLength) {
        throw modelError(`${file}: ${t.name} has shape [${entry.shape.join()}], the model needs [${t.shape.join()}]`)
      }
      readFully(file, fd, new Uint8Array(t.data.buffer, t.data.byteOffset, t.data.byteLength), start + from)
    }
    return metadata
  } finally {
    closeSync(fd)
  }
}

function readHeader(file: string, fd: number) {
  const prefix = new Uint8Array(8)
  readFully(file, fd, prefix, 0)
  const length = Number(Buffer.from(prefix).readBigUInt64LE())
  if (length > statSync(file).size - 8) throw modelError(`${file} is not a safetensors file`)
  const text = new Uint8Array(length)
  readFully(file, fd, text, 8)
  try {
    const { __metadata__: metadata = {}, ...entries } = JSON.parse(Buffer.from(text).toString('utf8')) as Record<
      string,
      HeaderEntry
    > & { __metadata__?: Record<string, string> }
    return { start: 8 + length, entries: entries as Record<string, HeaderEntry>, metadata }
  } catch (error) {
    throw modelError(`${file} is not a safetensors file`, error)
  }
}

function readFully(file: string, fd: number, into: Uint8Array, position: number): void {
  for (let at = 0; at < into.byteLength;) {
    const got = readSync(fd, into, at, into.byteLength - at, position + at)
    if (got === 0) throw modelError(`${file} is shorter than its header says`)
    at += got
  }
}
