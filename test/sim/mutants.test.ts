/**
 * @file Whether the suite would notice: the same histories with one line of the product changed. Each change takes away
 * a safety rule, and some history has to accuse it.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join, resolve } from 'node:path'
import { afterAll, afterEach, expect, test, vi } from 'vitest'

const root = resolve(import.meta.dirname, '../..')
const folder = mkdtempSync(join(tmpdir(), 'gyre-mutants-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
afterEach(() => {
  vi.doUnmock(mutated)
  vi.resetModules()
})
let mutated = ''

interface Mutant {
  /** What is missing. */
  readonly without: string
  readonly file: string
  /** Code that is there exactly once. */
  readonly from: string
  readonly to: string
  /** A seed that saw it; the search begins there, and goes on when histories have changed since. */
  readonly seenAt: number
}

const MUTANTS: readonly Mutant[] = [
  {
    without: 'fencing: a cell obeys commands of older epochs',
    file: 'src/cell/host.ts',
    from: 'if (epoch < this.#epoch) throw this.#fenced(epoch)\n    this.#epoch = epoch',
    to: 'this.#epoch = Math.max(this.#epoch, epoch)',
    seenAt: 5,
  },
  {
    without: 'idempotency: a repeated micro-step counts again',
    file: 'src/cell/work-queue.ts',
    from: 'const known = entries.get(key)',
    to: 'const known = undefined as Entry | undefined',
    seenAt: 3,
  },
  {
    without: 'the fence around a join of a step that is over',
    file: 'src/scheduler/steps.ts',
    from: 'if (cell.joining) cell.epoch++',
    to: '',
    seenAt: 2905,
  },
  {
    without: 'returning the work of a lost member',
    file: 'src/scheduler/steps.ts',
    from: 'step.queue.unshift(...accumulated, ...claimed)',
    to: '',
    seenAt: 6,
  },
  {
    without: 'undoing the steps that were lost with the core',
    file: 'src/scheduler/failures.ts',
    from: "if (group.phase !== 'trained') continue",
    to: 'continue',
    seenAt: 14,
  },
  {
    without: 'partial tokens: a moved call starts over',
    file: 'src/gateway/sampler.ts',
    from: 'const promptIds = resumedFrom(generation.promptIds, sampled.tokenIds)',
    to: 'const promptIds = generation.promptIds',
    seenAt: 1,
  },
  {
    without: 'transparent retries: a lost engine is an error of the harness',
    file: 'src/gateway/sampler.ts',
    from: 'if (!isTransient(error)) throw error',
    to: 'throw error',
    seenAt: 2,
  },
  {
    without: 'memory of what is consumed: a resumed run trains it again',
    file: 'src/run/resume.ts',
    from: "group.state === 'dispatched' ||",
    to: "group.state === 'dispatched' || group.state === 'consumed' ||",
    seenAt: 3,
  },
  {
    without: 'the wait of a publication for every cell',
    file: 'src/scheduler/guards.ts',
    from: "({ publishing, phase }) => !publishing && phase !== 'returning'",
    to: "({ phase }) => phase !== 'returning'",
    seenAt: 2,
  },
  {
    without: 'deadlines: the controller waits for ever',
    file: 'src/run/controller-waits.ts',
    from: 'reject(new GyreError(message',
    to: 'void (new GyreError(message',
    seenAt: 2,
  },
]

/** Where the changed module is; its imports lead to the unchanged rest. */
function writeMutant({ file, from, to }: Mutant, index: number): string {
  const path = join(root, file)
  const source = readFileSync(path, 'utf8')
  expect(source.split(from).length - 1, `${file} holds the code to change exactly once: ${from}`).toBe(1)
  const text = source
    .replace(from, () => to)
    .replaceAll(/from '(\.{1,2}\/[^']+)'/g, (_, target: string) => `from '${resolve(dirname(path), target)}'`)
  const copy = join(folder, `${index}-${basename(file)}`)
  writeFileSync(copy, text)
  return copy
}

test.each(MUTANTS.map((mutant, index) => [mutant.without, mutant, index] as const))(
  'some history notices a product without %s',
  async (_, mutant, index) => {
    const copy = writeMutant(mutant, index)
    mutated = join(root, mutant.file)
    vi.resetModules()
    vi.doMock(mutated, async () => import(copy))
    const { planOf } = await import('./plan.ts')
    const { playHistory } = await import('./world.ts')
    const limit = Number(process.env['GYRE_SIM_MUTANT_RUNS'] ?? 1500)
    let caught: number | undefined
    for (let i = 0; i < limit && caught === undefined; i++) {
      const seed = mutant.seenAt + i
      if ((await playHistory(planOf(seed))).problems.length > 0) caught = seed
    }
    expect(caught).toBeGreaterThan(0)
  },
  600_000,
)
