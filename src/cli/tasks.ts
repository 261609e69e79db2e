/** @file `gyre tasks`: writes a generated task family as Harbor folders, to look at, to change, to train on. */
import { join, resolve } from 'node:path'
import { trailTasks } from '../adapters/tasks/trail/trail.ts'
import { writeTrailTasks } from '../adapters/tasks/trail/write.ts'
import { GyreError } from '../core/errors.ts'
import type { CliContext } from './context.ts'

export interface TasksOptions {
  readonly train: string
  readonly heldOut: string
  readonly minStops: string
  readonly maxStops: string
  readonly seed: string
  readonly json?: true
}

/** Writes `folder/train` and `folder/held-out`. @throws GyreError E_TASK_OPTION for a number that is none. */
export function writeTasks(folder: string, options: TasksOptions, context: CliContext): void {
  const [minStops, maxStops] = [number('--min-stops', options.minStops, 1), number('--max-stops', options.maxStops, 1)]
  if (minStops > maxStops) throw optionError(`--min-stops ${minStops} is above --max-stops ${maxStops}`)
  const seed = number('--seed', options.seed, 0)
  const write = (split: string, count: number): number => {
    const tasks = trailTasks({ seed, split, count, minStops, maxStops })
    return writeTrailTasks(tasks, join(resolve(context.cwd, folder), split)).length
  }
  const train = write('train', number('--train', options.train, 0))
  const heldOut = write('held-out', number('--held-out', options.heldOut, 0))
  if (options.json === true) context.print(JSON.stringify({ folder: resolve(context.cwd, folder), train, heldOut }))
  else context.print(`${train} tasks in ${join(folder, 'train')}, ${heldOut} in ${join(folder, 'held-out')}`)
}

function number(option: string, text: string, least: number): number {
  const value = Number(text)
  if (Number.isInteger(value) && value >= least) return value
  throw optionError(`${option} ${text} is no whole number of at least ${least}`)
}

function optionError(message: string): GyreError {
  return new GyreError(message, { boundary: 'task', code: 'E_TASK_OPTION' })
}
