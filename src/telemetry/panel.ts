/** @file The live picture of a run as lines of text: a pure function of what is known at the moment. */
import { formatDuration } from '../core/durations.ts'
import { sparkline } from './sparkline.ts'

export interface CellView {
  /** `rollout`, `training`, or what it is doing in between. */
  readonly phase: string
  /** Executions it serves. */
  readonly executions: number
  /** Executions it can serve. */
  readonly slots: number
  readonly busy: boolean
}

/** A rollout engine beside the cells. */
export interface StandaloneView {
  readonly name: string
  /** `serving`, or `failed` until it is back. */
  readonly phase: string
  readonly executions: number
  readonly slots: number
  /** Policy version it serves. */
  readonly policyVersion: number
}

/** Role transfers so far, and what the last one to training took. */
export interface TransfersView {
  readonly count: number
  readonly lastMs: number
  /** By all of them: cached context that was fetched instead of computed again. [tokens] */
  readonly tokensHandedOver: number
}

export interface RunView {
  readonly run: string
  /** elastic, qwengyre, colocate or async. */
  readonly policy: string
  /** What goes on, for example `training`, or `warm start, step 40 of 150`. */
  readonly stage: string
  readonly step: number
  readonly totalSteps: number
  readonly burst: number
  readonly policyVersion: number
  /** Mean reward of each step so far. */
  readonly rewards: readonly number[]
  readonly groups: { readonly outstanding: number; readonly ready: number; readonly consumed: number }
  readonly executions: {
    readonly live: number
    readonly queued: number
    readonly held: number
    readonly finished: number
    readonly excluded: number
    /** Ended early so that their group could go on; scored. */
    readonly cut: number
  }
  readonly cells: readonly CellView[]
  readonly standalone: readonly StandaloneView[]
  /** undefined before the first one. */
  readonly transfers: TransfersView | undefined
  /** phi at present. [steps] */
  readonly carryOver: number
  /** w and C_R. [executions] */
  readonly waterLevel: number
  readonly capacity: number
  /** Of the last step. [steps] NaN when there was none. */
  readonly stalenessMean: number
  readonly stalenessMax: number
  /** Sampled tokens per second, lately. */
  readonly tokensPerSecond: number
  readonly elapsedMs: number
  /** undefined while it cannot be told. */
  readonly etaMs: number | undefined
}

/** How parts are set off; the identity where there are no colors. */
export interface Paint {
  readonly dim: (text: string) => string
  readonly bold: (text: string) => string
  readonly green: (text: string) => string
  readonly yellow: (text: string) => string
  readonly cyan: (text: string) => string
  readonly red: (text: string) => string
}

const same = (text: string): string => text
export const NO_PAINT: Paint = { dim: same, bold: same, green: same, yellow: same, cyan: same, red: same }

/** @param width columns; longer lines are cut. */
export function panelLines(view: RunView, width: number, paint: Paint = NO_PAINT): readonly string[] {
  const { groups, executions } = view
  const field = (name: string, text: string): string => `${paint.dim(name.padEnd(11))}${text}`
  const reward = view.rewards.at(-1)
  const curve = sparkline(view.rewards, Math.max(8, Math.min(60, width - 22)), [0, 1])
  return [
    `${paint.bold(view.run)}  ${view.policy}  ${paint.cyan(view.stage)}`,
    field('step', `${progressBar(view.step, view.totalSteps, 20)} ${stepText(view)}`),
    field(
      'reward',
      reward === undefined ? paint.dim('after the first step') : `${curve} ${paint.bold(reward.toFixed(3))}`,
    ),
    field('cells', view.cells.map((cell, i) => cellText(cell, i, paint)).join('   ')),
    ...(view.standalone.length === 0
      ? []
      : [field('beside', view.standalone.map((engine) => standaloneText(engine, paint)).join('   '))]),
    field('water', waterText(view)),
    field(
      'groups',
      `${groups.outstanding} out, ${groups.ready} ready, ${groups.consumed} trained   phi ${view.carryOver}`,
    ),
    field(
      'executions',
      `${executions.live} live, ${executions.queued} queued, ${executions.finished} finished` +
        optional(executions.held, 'held') +
        optional(executions.cut, 'cut') +
        optional(executions.excluded, 'excluded'),
    ),
    ...(view.transfers === undefined ? [] : [field('transfers', transfersText(view.transfers))]),
    field('staleness', `${stalenessText(view)}   ${Math.round(view.tokensPerSecond)} tokens/s`),
  ].map((line) => cutLine(line, width))
}

/** What a look from outside adds to the books: names and texts. */
export function panelRows(view: Omit<RunView, 'rewards'>): readonly (readonly [string, string])[] {
  const { executions } = view
  return [
    ['stage', view.stage],
    ...(view.cells.length === 0
      ? []
      : [['cells', view.cells.map((cell, i) => cellText(cell, i, NO_PAINT)).join('   ')] as const]),
    ...(view.standalone.length === 0
      ? []
      : [['beside', view.standalone.map((engine) => standaloneText(engine, NO_PAINT)).join('   ')] as const]),
    ['live', `${executions.live} live, ${executions.queued} queued${optional(executions.held, 'held')}`],
    ['phi', `${view.carryOver}${optional(executions.cut, 'executions cut')}`],
    ...(view.transfers === undefined ? [] : [['transfers', transfersText(view.transfers)] as const]),
  ]
}

/** One line on a finished step, for logs. */
export function stepLine(view: RunView): string {
  const reward = view.rewards.at(-1)
  const parts = [
    `step ${view.step}/${view.totalSteps}`,
    `burst ${view.burst}`,
    `reward ${reward === undefined ? '-' : reward.toFixed(3)}`,
    `staleness ${stalenessText(view)}`,
    `${Math.round(view.tokensPerSecond)} tokens/s`,
    formatDuration(view.elapsedMs),
  ]
  if (view.etaMs !== undefined) parts.push(`eta ${formatDuration(view.etaMs)}`)
  return parts.join('  ')
}

/** One line on a run between steps, so that a log shows life. */
export function lifeLine(view: RunView): string {
  const roles = view.cells.map((cell, i) => `${i} ${cell.phase}`).join(', ')
  const { live, finished } = view.executions
  // Before the elastic loop begins there is nothing to say of cells and executions.
  const cells = roles === '' ? '' : `  cells: ${roles}  ${live} live, ${finished} finished executions`
  return `${view.stage}${cells}  ${formatDuration(view.elapsedMs)}`
}

function stepText(view: RunView): string {
  const eta = view.etaMs === undefined ? '' : `  eta ${formatDuration(view.etaMs)}`
  const { step, totalSteps, burst, policyVersion, elapsedMs } = view
  return `${step} of ${totalSteps}  burst ${burst}  version ${policyVersion}  ${formatDuration(elapsedMs)}${eta}`
}

function cellText(cell: CellView, index: number, paint: Paint): string {
  const mark = cell.busy ? '●' : '○'
  if (cell.phase === 'rollout') return paint.green(`${index} ${mark} rollout ${cell.executions}/${cell.slots}`)
  if (cell.phase === 'training') return paint.cyan(`${index} ${mark} training`)
  const isDown = cell.phase === 'failed' || cell.phase.startsWith('rest')
  return (isDown ? paint.red : paint.yellow)(`${index} ${mark} ${cell.phase}`)
}

function standaloneText({ name, phase, executions, slots, policyVersion }: StandaloneView, paint: Paint): string {
  if (phase === 'failed') return paint.red(`${name} ○ failed`)
  return paint.green(`${name} ${executions > 0 ? '●' : '○'} ${executions}/${slots} version ${policyVersion}`)
}

function transfersText({ count, lastMs, tokensHandedOver }: TransfersView): string {
  const handed = tokensHandedOver > 0 ? `, ${tokensHandedOver} tokens handed over` : ''
  return `${count}, the last to training in ${formatDuration(lastMs)}${handed}`
}

function waterText({ waterLevel, capacity }: RunView): string {
  return `${progressBar(waterLevel, Math.max(capacity, waterLevel), 20)} ${waterLevel} unfinished, ${capacity} slots roll out`
}

function stalenessText({ stalenessMean, stalenessMax }: RunView): string {
  return Number.isNaN(stalenessMean) ? '-' : `${stalenessMean.toFixed(1)} mean, ${stalenessMax} max`
}

function progressBar(part: number, whole: number, width: number): string {
  const full = whole > 0 ? Math.round((Math.min(part, whole) / whole) * width) : 0
  return `${'█'.repeat(full)}${'░'.repeat(width - full)}`
}

function optional(count: number, what: string): string {
  return count > 0 ? `, ${count} ${what}` : ''
}

// oxlint-disable-next-line no-control-regex -- terminal colors begin with the escape character
const STYLE = /\u001b\[[0-9;]*m/y

/** Cuts after `width` visible characters; color codes take no room and are all kept, so none stays switched on. */
export function cutLine(line: string, width: number): string {
  let out = ''
  let used = 0
  for (let i = 0; i < line.length;) {
    STYLE.lastIndex = i
    const style = STYLE.exec(line)?.[0]
    if (style !== undefined) {
      out += style
      i += style.length
      continue
    }
    const char = String.fromCodePoint(line.codePointAt(i) ?? 32)
    if (used < width) out += char
    used++
    i += char.length
  }
  return out
}
