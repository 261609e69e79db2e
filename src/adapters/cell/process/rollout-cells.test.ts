import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { afterAll, afterEach, expect, test } from 'vitest'
import { processes } from '../../../../test/support/gyre-process.ts'
import { executionId } from '../../../core/ids.ts'
import type { StandaloneEngine } from '../../../ports/engine.ts'
import { RolloutCells } from './rollout-cells.ts'

const VOCAB = 8
const root = mkdtempSync(join(tmpdir(), 'gyre-rollout-'))
afterAll(() => rmSync(root, { recursive: true }))
const never = new AbortController().signal

/** A bigram model that always goes from one token to the next but `skip`. */
function checkpoint(name: string, skip: number): string {
  const folder = join(root, name)
  mkdirSync(folder)
  const weights = Array.from({ length: VOCAB * VOCAB }, (_, i) => {
    const [from, to] = [Math.floor(i / VOCAB), i % VOCAB]
    return to === (from + skip) % VOCAB ? 20 : 0
  })
  const zeros = weights.map(() => 0)
  writeFileSync(join(folder, 'bigram.json'), JSON.stringify({ steps: 0, state: [weights, zeros, zeros] }))
  return folder
}
const byOne = checkpoint('by-one', 1)
const byThree = checkpoint('by-three', 3)

let cells: RolloutCells | undefined
afterEach(async () => cells?.close())

async function started(): Promise<{ readonly cells: RolloutCells; readonly engine: StandaloneEngine }> {
  cells = await RolloutCells.start({
    slots: [3],
    argv: [
      process.execPath,
      '--import',
      'tsx',
      resolve(import.meta.dirname, '../../../../test/support/bigram-cell.ts'),
    ],
    engine: () => ({ vocabSize: VOCAB, tokenDelayMs: 1, maxContext: 2048 }),
    logFolder: root,
    restartPauseMs: 50,
  })
  const [engine] = cells.engines
  if (engine === undefined) throw new Error('one engine was asked for')
  return { cells, engine }
}

async function ask(engine: StandaloneEngine, maxTokens = 3): Promise<{ ids: number[]; versions: number[] }> {
  const said = { ids: [] as number[], versions: [] as number[] }
  const sampling = { maxTokens, temperature: 1, topP: 1, topK: 0, stopTokenIds: [], seed: 1 }
  const request = { requestId: 'r', executionId: executionId('e'), promptIds: Int32Array.of(0), sampling }
  for await (const event of engine.generate(request, never)) {
    if (event.kind !== 'tokens') continue
    said.ids.push(...event.tokenIds)
    said.versions.push(...event.policyVersions)
  }
  return said
}

test('serves what it was given, takes another version while it generates, and stamps each token with its own', async () => {
  const { engine } = await started()
  expect(engine).toMatchObject({ id: 'rollout-0', slots: 3 })
  await expect(ask(engine)).rejects.toMatchObject({ retryable: true })
  await engine.takeWeights({ folder: byOne, policyVersion: 2 }, never)
  expect(await ask(engine)).toEqual({ ids: [1, 2, 3], versions: [2, 2, 2] })
  const running = ask(engine, 1500)
  await Promise.all([
    expect(running).rejects.toMatchObject({ retryable: true }),
    engine.takeWeights({ folder: byThree, policyVersion: 4 }, never),
  ])
  expect(await ask(engine)).toEqual({ ids: [3, 6, 1], versions: [4, 4, 4] })
  await engine.probe(never)
}, 60_000)

test('after kill -9 it is started again, serves nothing before it has weights, and then the version it is given', async () => {
  const { cells: owner, engine } = await started()
  await engine.takeWeights({ folder: byOne, policyVersion: 2 }, never)
  const pid = owner.pidOf(0) ?? 0
  const running = ask(engine, 1500)
  process.kill(pid, 'SIGKILL')
  await expect(running).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' })
  await expect.poll(() => owner.pidOf(0) ?? pid, { timeout: 20_000 }).not.toBe(pid)
  // A new process without weights is as good as none.
  await expect(engine.probe(never)).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' })
  await expect(ask(engine)).rejects.toMatchObject({ retryable: true })
  await engine.takeWeights({ folder: byThree, policyVersion: 6 }, never)
  await engine.probe(never)
  expect(await ask(engine)).toEqual({ ids: [3, 6, 1], versions: [6, 6, 6] })
}, 60_000)

test('whoever gives it weights need not wait until it was started again, and closing leaves no process', async () => {
  const { cells: owner, engine } = await started()
  const pid = owner.pidOf(0) ?? 0
  process.kill(pid, 'SIGKILL')
  await expect.poll(() => owner.pidOf(0)).not.toBe(pid)
  await engine.takeWeights({ folder: byOne, policyVersion: 8 }, never)
  expect((await ask(engine)).versions).toEqual([8, 8, 8])
  const now = owner.pidOf(0)
  // The start that was planned after the death finds it running.
  await new Promise((done) => setTimeout(done, 200))
  expect(owner.pidOf(0)).toBe(now)
  await owner.close()
  expect(processes().filter((p) => p.pid === now)).toEqual([])
}, 60_000)

test('a folder without weights is an error, and the engine waits for the next one', async () => {
  const { engine } = await started()
  await engine.takeWeights({ folder: byOne, policyVersion: 2 }, never)
  await expect(engine.takeWeights({ folder: join(root, 'none'), policyVersion: 4 }, never)).rejects.toThrow(/none/)
  await expect(engine.probe(never)).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' })
  await expect(ask(engine)).rejects.toMatchObject({ retryable: true })
  await engine.takeWeights({ folder: byOne, policyVersion: 4 }, never)
  expect((await ask(engine)).versions).toEqual([4, 4, 4])
}, 60_000)
