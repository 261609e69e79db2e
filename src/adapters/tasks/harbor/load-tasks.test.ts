import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { GyreError } from '../../../core/errors.ts'
import { loadTasks } from './load-tasks.ts'

let root = ''
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'gyre-tasks-'))
})
afterEach(() => rmSync(root, { recursive: true, force: true }))

const TOML = `version = "1.0"
[metadata]
author = "someone"
[agent]
timeout_sec = 12.5
[verifier]
timeout_sec = 30
`

function writeTask(name: string, files: Record<string, string | undefined> = {}): void {
  const all = { 'task.toml': TOML, 'instruction.md': 'Do it.\n', 'tests/test.sh': 'true\n', ...files }
  for (const [file, text] of Object.entries(all)) {
    if (text === undefined) continue
    mkdirSync(dirname(join(root, name, file)), { recursive: true })
    writeFileSync(join(root, name, file), text)
  }
}

async function failure(folder = root): Promise<GyreError> {
  const error: unknown = await loadTasks(folder).catch((e: unknown) => e)
  if (!(error instanceof GyreError)) throw new Error(`expected a GyreError, got ${String(error)}`)
  return error
}

test('loads every task folder in the order of the names', async () => {
  writeTask('b-task')
  writeTask('a-task', { 'task.toml': 'version = "1.0"\n' })
  writeTask('.hidden', { 'task.toml': undefined })
  writeFileSync(join(root, 'README.md'), 'not a task')
  const tasks = await loadTasks(root, { agentTimeoutMs: 1000, verifierTimeoutMs: 2000 })
  expect(tasks).toEqual([
    {
      name: 'a-task',
      folder: join(root, 'a-task'),
      instruction: 'Do it.',
      agentTimeoutMs: 1000,
      verifierTimeoutMs: 2000,
    },
    {
      name: 'b-task',
      folder: join(root, 'b-task'),
      instruction: 'Do it.',
      agentTimeoutMs: 12_500,
      verifierTimeoutMs: 30_000,
    },
  ])
})

test('loads a single task folder given by itself', async () => {
  writeTask('only')
  expect((await loadTasks(join(root, 'only'))).map((t) => t.name)).toEqual(['only'])
})

test('accepts a link that stays inside the task folder', async () => {
  writeTask('linked', { 'environment/data.txt': 'x' })
  symlinkSync('data.txt', join(root, 'linked', 'environment', 'alias.txt'))
  expect(await loadTasks(root)).toHaveLength(1)
})

test('says which folder is missing', async () => {
  const error = await failure(join(root, 'nowhere'))
  expect(error).toMatchObject({ code: 'E_TASK_NOT_FOUND', boundary: 'task' })
  expect(error.message).toContain(join(root, 'nowhere'))
})

test('says that a folder holds no task', async () => {
  expect(await failure()).toMatchObject({ code: 'E_TASK_NOT_FOUND' })
})

test.each(['instruction.md', 'task.toml'])('names the missing %s', async (file) => {
  writeTask('broken', { [file]: undefined })
  const error = await failure()
  expect(error.code).toBe('E_TASK_FILE_MISSING')
  expect(error.message).toContain(join(root, 'broken', file))
})

test('names a task without tests', async () => {
  writeTask('untested', { 'tests/test.sh': undefined })
  expect(await failure()).toMatchObject({ code: 'E_TASK_NO_TESTS' })
})

test.each([
  ['text that is not TOML', { 'task.toml': 'version = "1.0"\n[agent\n' }, 'task.toml:2'],
  [
    'a timeout that is not a number',
    { 'task.toml': '[agent]\n\ntimeout_sec = "long"\n' },
    'task.toml:3 agent.timeout_sec',
  ],
  ['a negative timeout', { 'task.toml': '[verifier]\ntimeout_sec = -1\n' }, 'task.toml:2 verifier.timeout_sec'],
  ['an empty instruction', { 'instruction.md': ' \n' }, 'instruction.md'],
])('points at %s', async (_, files, place) => {
  writeTask('broken', files)
  const error = await failure()
  expect(error.code).toBe('E_TASK_MALFORMED')
  expect(error.message).toContain(join(root, 'broken', place))
})

test.each([
  ['absolute', '/etc/passwd'],
  ['relative', '../../outside'],
])('refuses an %s link that leaves the task folder', async (_, target) => {
  writeTask('leaky', { 'environment/data.txt': 'x' })
  symlinkSync(target, join(root, 'leaky', 'environment', 'escape'))
  const error = await failure()
  expect(error.code).toBe('E_TASK_MALFORMED')
  expect(error.message).toContain('escape')
})
