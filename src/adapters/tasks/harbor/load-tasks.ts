/**
 * @file Loads a folder of task folders in Harbor format, and says exactly what is wrong with one that is not.
 *
 * A task folder has `task.toml`, `instruction.md`, `tests/test.sh`, mostly `environment/` and sometimes `solution/`.
 * Nothing is run here, and no link that leads out of a task folder is accepted.
 */
import { readFileSync, readdirSync, statSync } from 'node:fs'
import { basename, join, resolve } from 'node:path'
import { parse, TomlError } from 'smol-toml'
import { z } from 'zod'
import { GyreError } from '../../../core/errors.ts'
import { findBreach } from '../../../host/copy-confined.ts'
import type { Task } from '../../../ports/task.ts'

export interface TaskDefaults {
  /** For a task without `[agent] timeout_sec`. [ms] */
  readonly agentTimeoutMs: number
  /** For a task without `[verifier] timeout_sec`. [ms] */
  readonly verifierTimeoutMs: number
}

const DEFAULTS: TaskDefaults = { agentTimeoutMs: 15 * 60_000, verifierTimeoutMs: 5 * 60_000 }

const section = z.looseObject({ timeout_sec: z.number().positive().optional() })
/** Harbor's file has more keys than matter here, and gains some with each version: they are let through. */
const taskFile = z.looseObject({
  version: z.union([z.string(), z.number()]).optional(),
  metadata: z.looseObject({}).optional(),
  agent: section.optional(),
  verifier: section.optional(),
})

/**
 * Tasks in the order of their names. `folder` may also be one task folder itself.
 * @throws GyreError E_TASK_NOT_FOUND, E_TASK_FILE_MISSING, E_TASK_NO_TESTS, E_TASK_MALFORMED.
 */
export async function loadTasks(folder: string, defaults: TaskDefaults = DEFAULTS): Promise<readonly Task[]> {
  const root = resolve(folder)
  if (kindOf(root) !== 'folder') {
    throw taskError('E_TASK_NOT_FOUND', `${root} is no folder: give the folder that holds the task folders`)
  }
  if (kindOf(join(root, 'task.toml')) === 'file') return [await loadTask(root, defaults)]
  const names = readdirSync(root)
    .filter((name) => !name.startsWith('.') && kindOf(join(root, name)) === 'folder')
    .sort()
  if (names.length === 0) {
    throw taskError(
      'E_TASK_NOT_FOUND',
      `${root} holds no task folder: each task is a folder with task.toml, instruction.md and tests/test.sh`,
    )
  }
  const tasks: Task[] = []
  for (const name of names) tasks.push(await loadTask(join(root, name), defaults))
  return tasks
}

/** One task folder. @throws GyreError as loadTasks does. */
export async function loadTask(folder: string, defaults: TaskDefaults = DEFAULTS): Promise<Task> {
  const name = basename(folder)
  const settings = parseTaskFile(folder)
  const instruction = readRequired(folder, 'instruction.md').trim()
  if (instruction === '') {
    throw taskError('E_TASK_MALFORMED', `${join(folder, 'instruction.md')} is empty: write what the agent shall do`)
  }
  if (kindOf(join(folder, 'tests', 'test.sh')) !== 'file') {
    throw taskError(
      'E_TASK_NO_TESTS',
      `task ${name} has no tests/test.sh in ${folder}: write one that puts a number into $LOGS_DIR/verifier/reward.txt`,
    )
  }
  const breach = await findBreach(folder)
  if (breach !== undefined) {
    throw taskError(
      'E_TASK_MALFORMED',
      `${join(folder, breach.path)} ${breach.reason}: a task may only use its own files, replace it by a copy`,
    )
  }
  return {
    name,
    folder,
    instruction,
    agentTimeoutMs: toMs(settings.agent?.timeout_sec) ?? defaults.agentTimeoutMs,
    verifierTimeoutMs: toMs(settings.verifier?.timeout_sec) ?? defaults.verifierTimeoutMs,
  }
}

function parseTaskFile(folder: string): z.infer<typeof taskFile> {
  const path = join(folder, 'task.toml')
  const text = readRequired(folder, 'task.toml')
  let raw: unknown
  try {
    raw = parse(text)
  } catch (error) {
    if (!(error instanceof TomlError)) throw error
    const reason = error.message.split('\n')[0]
    throw taskError('E_TASK_MALFORMED', `${path}:${error.line}:${error.column} is not TOML: ${reason}`, error)
  }
  const parsed = taskFile.safeParse(raw)
  if (parsed.success) return parsed.data
  const issue = parsed.error.issues[0]
  const key = issue?.path.map(String) ?? []
  const line = lineOf(text, key)
  const place = line === undefined ? path : `${path}:${line}`
  throw taskError('E_TASK_MALFORMED', `${place} ${key.join('.')}: ${issue?.message ?? 'invalid'}`, parsed.error)
}

/** Line of `key` in its `[section]`, as tables are written in practice; undefined when it stands otherwise. */
function lineOf(text: string, path: readonly string[]): number | undefined {
  const [table, key] = path.length > 1 ? [path[0], path[1]] : [undefined, path[0]]
  let current: string | undefined
  for (const [index, line] of text.split('\n').entries()) {
    const header = /^\s*\[\s*([^\]]+?)\s*\]/.exec(line)
    if (header) current = header[1]
    if (current === table && new RegExp(`^\\s*${key ?? ''}\\s*=`).test(line)) return index + 1
  }
  return undefined
}

function readRequired(folder: string, file: string): string {
  const path = join(folder, file)
  if (kindOf(path) !== 'file') {
    throw taskError(
      'E_TASK_FILE_MISSING',
      `task ${basename(folder)} has no ${file}: ${path} must exist (is ${folder} meant to be a task folder?)`,
    )
  }
  return readFileSync(path, 'utf8')
}

function kindOf(path: string): 'file' | 'folder' | undefined {
  const stat = statSync(path, { throwIfNoEntry: false })
  if (stat?.isFile() === true) return 'file'
  return stat?.isDirectory() === true ? 'folder' : undefined
}

function toMs(seconds: number | undefined): number | undefined {
  return seconds === undefined ? undefined : Math.round(seconds * 1000)
}

function taskError(code: `E_TASK_${string}` & `E_${Uppercase<string>}`, message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'task', code, cause })
}
