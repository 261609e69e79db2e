import { execFileSync } from 'node:child_process'
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { seededRng } from '../../../core/rng.ts'
import { trailDemonstration, trailExchanges } from './demonstrations.ts'
import { PARTIAL_SHARE, trailTasks } from './trail.ts'
import { writeTrailTasks } from './write.ts'

const root = mkdtempSync(join(tmpdir(), 'gyre-trail-'))
afterAll(() => rmSync(root, { recursive: true, force: true }))

const options = { seed: 7, split: 'train', count: 12, minStops: 3, maxStops: 5 }

/** Runs the commands in a real shell over the task's environment, then the task's own verifier. */
function rewardOf(folder: string, commands: readonly string[]): number {
  const workspace = mkdtempSync(join(root, 'ws-'))
  cpSync(join(folder, 'environment'), workspace, { recursive: true })
  const env = { PATH: process.env['PATH'] ?? '', LOGS_DIR: join(workspace, 'logs') }
  for (const command of commands) execFileSync('sh', ['-c', command], { cwd: workspace, env })
  execFileSync('sh', [join(folder, 'tests/test.sh')], { cwd: workspace, env })
  const { reward } = JSON.parse(readFileSync(join(workspace, 'logs/verifier/reward.json'), 'utf8')) as {
    reward: number
  }
  return reward
}

test('the same seed gives the same tasks, and the splits share no trail', () => {
  expect(trailTasks(options)).toEqual(trailTasks(options))
  const trails = (split: string): Set<string> =>
    new Set(trailTasks({ ...options, split, count: 200 }).map((task) => JSON.stringify(task.stops)))
  const heldOut = trails('held-out')
  expect([...trails('train')].filter((trail) => heldOut.has(trail))).toEqual([])
})

test('going on to the end earns 1, giving up earns the share of what is right, doing nothing earns 0', () => {
  const tasks = trailTasks(options)
  const folders = writeTrailTasks(tasks, join(root, 'tasks'))
  const [task] = tasks
  const [folder] = folders
  if (task === undefined || folder === undefined) throw new Error('no task')
  const commands = (goOn: number): string[] => trailExchanges(task, goOn, seededRng(1)).map((e) => e.command)
  expect(rewardOf(folder, commands(1))).toBe(1)
  expect(rewardOf(folder, commands(0))).toBeCloseTo(PARTIAL_SHARE / task.stops.length, 3)
  expect(rewardOf(folder, [])).toBe(0)
  expect(rewardOf(folder, [...commands(1), 'echo extra >> answer.txt'])).toBeCloseTo(PARTIAL_SHARE, 3)
  expect(rewardOf(folder, ['sh ' + join(folder, 'solution/solve.sh')])).toBe(1)
})

test('a demonstration shows what the shell would have printed', () => {
  const [task] = trailTasks(options)
  if (task === undefined) throw new Error('no task')
  const manners = { tool: 'bash', argument: 'command', emptyResult: '(no output)' }
  const items = trailDemonstration(task, { seed: 1, goOn: 1, manners })
  const results = items.flatMap((item) => (item.kind === 'tool-result' ? [item.text] : []))
  expect(results.at(-1)).toBe('(no output)')
  expect(results.slice(0, -1)).toEqual(
    task.stops.map((s) => `code ${s.code}\n${s.next === undefined ? 'end' : `next ${s.next}`}\n`),
  )
})

/** Every file below a folder, by its path in it. */
function filesOf(folder: string): [string, string][] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .toSorted()
    .map((file) => [file.slice(folder.length), readFileSync(file, 'utf8')])
}

test('the committed sample is what the generator writes', () => {
  const sample = { seed: 1, minStops: 2, maxStops: 4 }
  writeTrailTasks(trailTasks({ ...sample, split: 'train', count: 4 }), join(root, 'sample/train'))
  writeTrailTasks(trailTasks({ ...sample, split: 'held-out', count: 2 }), join(root, 'sample/held-out'))
  expect(filesOf(join(import.meta.dirname, '../../../../tasks/trail'))).toEqual(filesOf(join(root, 'sample')))
})

test('filler makes files longer and tasks no harder: the demonstrated commands still earn 1', () => {
  const [task] = trailTasks({ ...options, fillerLines: 12 })
  const [plain] = trailTasks(options)
  if (task === undefined || plain === undefined) throw new Error('no task')
  const [folder] = writeTrailTasks([task], join(root, 'filler'))
  expect(task.stops.map((s) => [s.file, s.code])).toEqual(plain.stops.map((s) => [s.file, s.code]))
  expect(readFileSync(join(folder ?? '', 'environment', task.stops[0]?.file ?? ''), 'utf8').split('\n')).toHaveLength(
    15,
  )
  const commands = trailExchanges(task, 1, seededRng(1)).map((e) => e.command)
  expect(rewardOf(folder ?? '', commands)).toBe(1)
})

test('a talking demonstrator says a word before every call, and another one for another task', () => {
  const manners = { tool: 'bash', argument: 'command', emptyResult: '(no output)' }
  const first = trailTasks(options).map((task) => {
    const [item] = trailDemonstration(task, { seed: 1, goOn: 1, manners, talks: true })
    return item?.kind === 'assistant' ? item.text : ''
  })
  expect(first.every((word) => /^[a-z]+$/.test(word))).toBe(true)
  expect(new Set(first).size).toBeGreaterThan(3)
})
