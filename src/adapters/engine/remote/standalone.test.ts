import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import type { BaseServer } from '../../../../test/support/servers/base-server.ts'
import { startSglangServer } from '../../../../test/support/servers/sglang-server.ts'
import { generateToy, TOY_VOCAB } from '../../../../test/support/servers/toy-model.ts'
import { startVllmServer } from '../../../../test/support/servers/vllm-server.ts'
import { engineId, executionId } from '../../../core/ids.ts'
import type { Engine, GenerateEvent } from '../../../ports/engine.ts'
import { servableFolder } from './servable-folder.ts'
import { standaloneSglang } from './sglang-weights.ts'
import type { RemoteStandaloneEngine } from './standalone.ts'
import { standaloneVllm } from './vllm-weights.ts'
import { checkWeights } from './weights-check.ts'

const root = mkdtempSync(join(tmpdir(), 'gyre-weights-'))
afterAll(() => rmSync(root, { recursive: true }))
const never = new AbortController().signal

/** A checkpoint as ours: an embedding of two columns, shared with the output layer, and an optimizer beside it. */
function checkpoint(name: string, logit: (id: number) => number): string {
  const folder = join(root, name)
  mkdirSync(folder)
  const data = new Float32Array(TOY_VOCAB * 2).map((_, i) => (i % 2 === 0 ? logit(i / 2) : 1))
  const description = { dtype: 'F32', shape: [TOY_VOCAB, 2], data_offsets: [0, data.byteLength] }
  const json = JSON.stringify({ __metadata__: { format: 'pt' }, 'model.embed_tokens.weight': description })
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(json.length))
  writeFileSync(join(folder, 'model.safetensors'), Buffer.concat([length, Buffer.from(json), Buffer.from(data.buffer)]))
  writeFileSync(join(folder, 'optimizer.safetensors'), 'moments')
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ tie_word_embeddings: true, vocab_size: TOY_VOCAB }))
  writeFileSync(join(folder, 'tokenizer.json'), '{}')
  return folder
}

/** The first column of the output layer: the logits of the servers below. */
function headOf(folder: string): readonly number[] {
  const bytes = readFileSync(join(folder, 'lm_head.safetensors'))
  const start = 8 + Number(bytes.readBigUInt64LE())
  return Array.from({ length: TOY_VOCAB }, (_, id) => bytes.readFloatLE(start + id * 8))
}

const waves =
  (phase: number) =>
  (id: number): number =>
    3 * Math.sin(id * 1.7 + phase)
const A = checkpoint('step_0', waves(0))
const B = checkpoint('step_2', waves(2))

/** A server with a model from disk. @param keepsHead a server that goes on with the output layer it began with. */
async function rig(
  kind: 'sglang' | 'vllm',
  { keepsHead = false, loads = true, pieceDelayMs = 0 } = {},
): Promise<{ server: BaseServer; engine: RemoteStandaloneEngine } & AsyncDisposable> {
  let logits = headOf(servableFolder(A))
  const load = (folder: string): void => {
    const next = headOf(folder)
    if (!keepsHead) logits = next
  }
  const options = { weights: () => logits, ...(loads ? { load } : {}) }
  const server = await (kind === 'sglang'
    ? startSglangServer({ ...options, logprobs: 'raw', shape: 'delta' })
    : startVllmServer(options))
  try {
    const common = { id: engineId(kind), baseUrl: server.baseUrl, vocabSize: TOY_VOCAB, slots: 2 }
    const engine = await (kind === 'sglang' ? standaloneSglang(common) : standaloneVllm(common))
    Object.assign(server.options, { pieceDelayMs })
    server.forgetCalls()
    const dispose = async (): Promise<void> => {
      await engine.close()
      await server.close()
    }
    return { server, engine, [Symbol.asyncDispose]: dispose }
  } catch (error) {
    await server.close()
    throw error
  }
}

interface Said {
  readonly ids: number[]
  readonly logprobs: number[]
  readonly versions: number[]
}

async function ask(engine: Engine, maxTokens = 4, onTokens?: (said: Said) => void): Promise<Said> {
  const said: Said = { ids: [], logprobs: [], versions: [] }
  const sampling = { maxTokens, temperature: 1, topP: 1e-6, topK: 0, stopTokenIds: [], seed: 1 }
  const request = { requestId: 'r', executionId: executionId('e'), promptIds: Int32Array.of(3, 1, 4), sampling }
  for await (const event of engine.generate(request, never)) {
    if (event.kind !== 'tokens') continue
    said.ids.push(...event.tokenIds)
    said.logprobs.push(...event.logprobs)
    said.versions.push(...event.policyVersions)
    onTokens?.(said)
  }
  return said
}

const likeliest = (logits: readonly number[]): number => logits.indexOf(Math.max(...logits))

describe.each(['sglang', 'vllm'] as const)('%s as a standalone engine', (kind) => {
  test('takes no generation before it has weights, then stamps each token with the version it was given', async () => {
    await using r = await rig(kind)
    await expect(ask(r.engine)).rejects.toMatchObject({ code: 'E_ENGINE_NOT_ADMITTING', retryable: true })
    for (const [policyVersion, folder] of [
      [4, A],
      [6, B],
      [8, A],
    ] as const) {
      await r.engine.takeWeights({ folder, policyVersion }, never)
      const said = await ask(r.engine)
      expect(said.versions).toEqual([policyVersion, policyVersion, policyVersion, policyVersion])
      expect(said.ids[0]).toBe(likeliest(headOf(servableFolder(folder))))
      await r.engine.probe(never)
    }
  })

  test('a generation that runs while weights change ends, retryable, with the tokens of the old version', async () => {
    await using r = await rig(kind, { pieceDelayMs: 5 })
    await r.engine.takeWeights({ folder: A, policyVersion: 1 }, never)
    let seen: Said | undefined
    const running = ask(r.engine, 200, (said) => (seen = said))
    await expect.poll(() => seen?.ids.length ?? 0).toBeGreaterThan(3)
    await Promise.all([
      r.engine.takeWeights({ folder: B, policyVersion: 2 }, never),
      expect(running).rejects.toMatchObject({ code: 'E_ENGINE_NOT_ADMITTING', retryable: true }),
    ])
    expect(new Set(seen?.versions)).toEqual(new Set([1]))
    expect((await ask(r.engine)).versions).toEqual([2, 2, 2, 2])
  })

  test('a folder it cannot load leaves it without weights, and the next one mends that', async () => {
    await using r = await rig(kind)
    await r.engine.takeWeights({ folder: A, policyVersion: 1 }, never)
    const broken = join(root, `broken-${kind}`)
    mkdirSync(broken)
    const taken = r.engine.takeFolder({ folder: broken, policyVersion: 2 }, never)
    await expect(taken).rejects.toMatchObject({ code: 'E_ENGINE_WEIGHTS', message: expect.stringContaining(broken) })
    await expect(ask(r.engine)).rejects.toMatchObject({ code: 'E_ENGINE_NOT_ADMITTING' })
    // Whoever gave it the folder knows.
    await r.engine.probe(never)
    await r.engine.takeWeights({ folder: B, policyVersion: 2 }, never)
    expect((await ask(r.engine)).versions).toEqual([2, 2, 2, 2])
  })

  test('weights that somebody else changed are noticed, and no token of theirs is stamped', async () => {
    await using r = await rig(kind)
    await r.engine.takeWeights({ folder: A, policyVersion: 1 }, never)
    r.server.label = 'foreign'
    if (kind === 'sglang') await expect(ask(r.engine)).rejects.toMatchObject({ code: 'E_ENGINE_WEIGHTS' })
    for (let asked = 0; asked < 2; asked++) {
      await expect(r.engine.probe(never)).rejects.toMatchObject({ code: 'E_ENGINE_WEIGHTS' })
    }
    await expect(ask(r.engine)).rejects.toMatchObject({ code: 'E_ENGINE_NOT_ADMITTING' })
    await r.engine.takeWeights({ folder: A, policyVersion: 1 }, never)
    await r.engine.probe(never)
  })

  test('a connection that was lost costs a question when the weights are still the same', async () => {
    await using r = await rig(kind)
    await r.engine.takeWeights({ folder: A, policyVersion: 1 }, never)
    Object.assign(r.server.options, {
      fault: (call: number) => (call === 0 ? { kind: 'die', afterTokens: 1 } : undefined),
    })
    r.server.forgetCalls()
    await expect(ask(r.engine)).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' })
    await expect
      .poll(async () =>
        ask(r.engine).then(
          (said) => said.versions,
          () => [],
        ),
      )
      .toEqual([1, 1, 1, 1])
  })

  test('one that is gone says so', async () => {
    await using r = await rig(kind)
    await r.engine.takeWeights({ folder: A, policyVersion: 1 }, never)
    await r.server.kill()
    await expect(r.engine.probe(never)).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' })
    const taken = r.engine.takeWeights({ folder: B, policyVersion: 2 }, never)
    await expect(taken).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' })
  })

  test('one that has no way to load weights is refused at the start, with how to start it', async () => {
    await expect(rig(kind, { loads: false })).rejects.toMatchObject({
      code: 'E_ENGINE_PROBE',
      message: expect.stringMatching(kind === 'vllm' ? /VLLM_SERVER_DEV_MODE=1/ : /update_weights_from_disk/),
    })
  })

  describe('is checked before it gets executions', () => {
    const weights = { folder: B, policyVersion: 7 }
    const check = { weights, reference: modelOf(waves(2)), vocabSize: TOY_VOCAB, maxContext: 400 }

    test('and left with the weights of the run', async () => {
      await using r = await rig(kind)
      await checkWeights(r.engine, check, never)
      expect((await ask(r.engine)).versions).toEqual([7, 7, 7, 7])
      expect(readdirSync(B).filter((name) => name.includes('check'))).toEqual([])
    })

    test('and refused when it keeps a part of what it was started with', async () => {
      await using r = await rig(kind, { keepsHead: true })
      const mend = expect.stringContaining(`Start it with the folder ${servableFolder(B)}`)
      await expect(checkWeights(r.engine, check, never)).rejects.toMatchObject({
        code: 'E_ENGINE_PROBE',
        message: mend,
      })
    })

    test('and refused when it computes something else, or has less context', async () => {
      await using r = await rig(kind)
      const other = { ...check, reference: modelOf((id) => 2 * waves(2)(id)) }
      await expect(checkWeights(r.engine, other, never)).rejects.toMatchObject({
        code: 'E_ENGINE_PROBE',
        message: expect.stringMatching(/its log-probs differ/),
      })
      const longer = checkWeights(r.engine, { ...check, maxContext: 4096 }, never)
      await expect(longer).rejects.toMatchObject({ message: expect.stringMatching(/the run needs 4096/) })
    })
  })
})

test('the folder for servers has the model alone, with an output layer of its own, and is made once', () => {
  const folder = servableFolder(A)
  expect(readdirSync(folder).sort()).toEqual([
    'config.json',
    'lm_head.safetensors',
    'model.safetensors',
    'tokenizer.json',
  ])
  expect(JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8'))).toEqual({
    tie_word_embeddings: false,
    vocab_size: TOY_VOCAB,
  })
  expect(headOf(folder).map((x) => x.toFixed(4))).toEqual(
    Array.from({ length: TOY_VOCAB }, (_, id) => Math.fround(waves(0)(id)).toFixed(4)),
  )
  expect(servableFolder(A)).toBe(folder)
  expect(() => servableFolder(join(root, 'none'))).toThrow(expect.objectContaining({ code: 'E_ENGINE_MODEL' }))
  expect(existsSync(join(root, 'none'))).toBe(false)
})

/** The run's own engine: the same arithmetic without a server. */
function modelOf(logit: (id: number) => number): Engine {
  const logits = Array.from({ length: TOY_VOCAB }, (_, id) => Math.fround(logit(id)))
  return {
    id: engineId('core'),
    async *generate({ promptIds, sampling }): AsyncGenerator<GenerateEvent> {
      const asked = { ...sampling, stopIds: sampling.stopTokenIds }
      const { tokens, finish } = generateToy([...promptIds], asked, 'raw', 'positional', undefined, () => logits)
      const tokenIds = tokens.map(({ id }) => id)
      yield { kind: 'tokens', tokenIds, logprobs: tokens.map((t) => t.logprob), policyVersions: tokenIds.map(() => 7) }
      yield { kind: 'end', finishReason: finish, cachedTokens: 0 }
    },
  }
}
