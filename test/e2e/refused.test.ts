import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { type Overrides, Place } from '../support/gyre-process.ts'

const LIMIT_MS = 120_000
let place: Place
beforeEach(() => {
  place = new Place()
})
afterEach(async () => place.close(), LIMIT_MS)

/** A port that somebody else has. */
const neighbor: Server = createServer()
beforeAll(async () => {
  await new Promise<void>((resolve) => {
    neighbor.listen(0, '127.0.0.1', resolve)
  })
})
afterAll(() => void neighbor.close())

function portOf(server: Server): number {
  const address = server.address()
  return address !== null && typeof address === 'object' ? address.port : 0
}

const GOOD_TASK = { 'task.toml': 'version = "1.0"\n', 'instruction.md': 'Do it.\n', 'tests/test.sh': 'exit 0\n' }

/** Two folders of one task each; the one to train on lacks a file. */
function taskFolders(missing?: keyof typeof GOOD_TASK): Overrides {
  for (const [folder, without] of [
    ['train', missing],
    ['held-out', undefined],
  ] as const) {
    mkdirSync(place.file(folder, 'one', 'tests'), { recursive: true })
    for (const [name, text] of Object.entries(GOOD_TASK)) {
      if (name !== without) writeFileSync(place.file(folder, 'one', name), text)
    }
  }
  return {
    'tasks.generate': undefined,
    'tasks.train': place.file('train'),
    'tasks.heldOut': place.file('held-out'),
    'warmstart.enabled': false,
    'policy.init': 'folder',
    'policy.folder': place.file('no-policy'),
  }
}

interface Refusal {
  readonly what: string
  readonly code: string
  readonly exit: 1 | 2
  /** In the text a person reads. */
  readonly says: RegExp
  readonly overrides: () => Overrides
  readonly args?: readonly string[]
}

const REFUSALS: readonly Refusal[] = [
  {
    what: 'an unknown key',
    code: 'E_CONFIG_UNKNOWN_KEY',
    exit: 2,
    says: /bad\.yaml:\d+:\d+: unknown key rolout: did you mean rollout\?/,
    overrides: () => ({ rolout: {} }),
  },
  {
    what: 'a value of the wrong type',
    code: 'E_CONFIG_TYPE',
    exit: 2,
    says: /bad\.yaml:\d+:\d+: training\.steps: .*"many"/,
    overrides: () => ({ 'training.steps': 'many' }),
  },
  {
    what: 'an override that is none',
    code: 'E_CONFIG_OVERRIDE',
    exit: 2,
    says: /training\.steps/,
    overrides: () => ({}),
    args: ['training.steps'],
  },
  {
    what: 'a task folder that is not there',
    code: 'E_TASK_NOT_FOUND',
    exit: 2,
    says: /nowhere is no folder/,
    overrides: () => ({ ...taskFolders(), 'tasks.train': place.file('nowhere') }),
  },
  {
    what: 'a task without its instruction',
    code: 'E_TASK_FILE_MISSING',
    exit: 2,
    says: /one has no instruction\.md/,
    overrides: () => taskFolders('instruction.md'),
  },
  {
    what: 'a task without tests',
    code: 'E_TASK_NO_TESTS',
    exit: 2,
    says: /one has no tests\/test\.sh/,
    overrides: () => taskFolders('tests/test.sh'),
  },
  {
    what: 'a policy folder that is not there',
    code: 'E_CONFIG_POLICY',
    exit: 2,
    says: /no-policy.*tokenizer\.json/,
    overrides: () => taskFolders(),
  },
  {
    what: 'a run folder that cannot be written',
    code: 'E_CONFIG_RUN_FOLDER',
    exit: 2,
    says: /paths\.runs=FOLDER/,
    overrides: () => ({ 'paths.runs': place.file('bad.yaml', 'runs') }),
  },
  {
    what: 'nothing to resume',
    code: 'E_CONFIG_NOTHING_TO_RESUME',
    exit: 2,
    says: /start it without --resume/,
    overrides: () => ({}),
    args: ['--resume'],
  },
  {
    what: 'a harness that is not installed',
    code: 'E_HARNESS_NOT_FOUND',
    exit: 1,
    says: /"no-such-agent" was not found in PATH/,
    overrides: () => ({ 'harness.argv': ['no-such-agent'] }),
  },
  {
    what: 'a harness that never calls the model',
    code: 'E_HARNESS_NO_CALLS',
    exit: 1,
    says: /exited with 0 without one model call.*base URL/s,
    overrides: () => ({ 'harness.argv': ['true'] }),
  },
  {
    what: 'a harness that crashes at once',
    code: 'E_HARNESS_CRASHED',
    exit: 1,
    says: /exited with 3 without one model call/,
    overrides: () => ({ 'harness.argv': ['sh', '-c', 'exit 3'] }),
  },
  {
    what: 'a port that somebody else has',
    code: 'E_GATEWAY_PORT',
    exit: 1,
    says: /cannot listen on 127\.0\.0\.1:\d+: free it, or choose another gateway port/,
    overrides: () => ({ 'gateway.port': portOf(neighbor) }),
  },
]

test.each(REFUSALS)('$what: $code, and nothing is left behind', { timeout: LIMIT_MS }, async (refusal) => {
  const { code, exit, says, overrides, args = [] } = refusal
  const file = place.runFile('bad', overrides())
  const end = await place.gyre('train', file, ...args).ended
  expect(end.err).toMatch(new RegExp(`error ${code}: `))
  expect(end.err).toMatch(says)
  expect(end.err).toContain('docs/errors.md')
  expect(end.err).not.toMatch(/\n {4}at /)
  expect([end.code, end.signal]).toEqual([exit, null])
  expect(await place.leftovers()).toEqual([])
  // Corrected, the same command works: what never started is not in the way.
  expect(existsSync(join(place.run('bad'), 'ledger.sqlite'))).toBe(false)
  expect(existsSync(join(place.run('bad'), 'run.lock'))).toBe(false)
})
