/** @file Where a schedule begins: at a boundary, fresh or rebuilt from the store. */
import { GyreError } from '../core/errors.ts'
import type { ExecutionId, GroupId } from '../core/ids.ts'
import type { BurstSlot, CellSlot, ExecutionSlot, GroupSlot, SchedulerConfig, SchedulerState } from './types.ts'

/** A group that no checkpoint has consumed, as the store has it. */
export interface ResumedGroup {
  readonly groupId: GroupId
  readonly dispatchVersion: number
  readonly members: readonly {
    /** Of the attempt to run when `queued`: an interrupted execution needs a new one. */
    readonly executionId: ExecutionId
    readonly attempt: number
    readonly phase: 'queued' | 'scored' | 'excluded'
  }[]
}

export interface ResumePoint {
  /** Of the last checkpoint. */
  readonly step: number
  /** Bursts opened so far. */
  readonly bursts: number
  /** In dispatch order. */
  readonly groups: readonly ResumedGroup[]
  /** Epoch of every cell at the start, at least that of any command sent to them before. Default 1. */
  readonly firstEpoch?: number
}

/** @throws GyreError E_CONFIG_SCHEDULER when the configuration can never train. */
export function initialState(config: SchedulerConfig): SchedulerState {
  return resumedState(config, { step: 0, bursts: 0, groups: [] })
}

/**
 * The state after a checkpoint, with the groups that are still to be trained. Every cell is expected to hold the
 * weights of that checkpoint and to be in rollout.
 * @throws GyreError E_CONFIG_SCHEDULER when the configuration can never train.
 */
export function resumedState(config: SchedulerConfig, point: ResumePoint): SchedulerState {
  checkConfig(config)
  const groups = point.groups.map((group, order) => resumedGroup(config, group, order))
  const members = groups.flatMap((g) => g.members)
  const terminated = members.filter((m) => m.phase !== 'queued').length
  return {
    config,
    phase: 'idle',
    stopping: false,
    failure: '',
    policyVersion: point.step,
    step: point.step,
    checkpointStep: point.step,
    burst: { id: point.bursts - 1, firstStep: point.step, stepsLeft: 0, ...burstClock(0) },
    prefix: 0,
    dispatched: members.length,
    started: terminated,
    terminated,
    dispatches: 0,
    creating: 0,
    creatingVersion: point.step,
    excludedInARow: 0,
    excludedGroups: 0,
    groups: groups.filter((g) => !isExcluded(config, g)),
    cells: Array.from({ length: config.cells }, () => freshCell(point.step, point.firstEpoch ?? 1)),
    standalone: config.standaloneSlots.map(() => ({
      phase: 'serving' as const,
      epoch: point.firstEpoch ?? 1,
      policyVersion: point.step,
      publishing: false,
    })),
    openStep: undefined,
    transfer: undefined,
    nowMs: 0,
    carryOver: config.carryOver,
    history: { completions: [], bursts: [] },
    load: { busyShare: undefined, reports: 0, factor: 1 },
    wakeAtMs: undefined,
    cutExecutions: 0,
    serial: groups.length,
  }
}

/** Of a burst that begins, or begins again, now. */
export function burstClock(nowMs: number): Pick<BurstSlot, 'startedAtMs' | 'idleMs' | 'filledAtMs'> {
  return { startedAtMs: nowMs, idleMs: 0, filledAtMs: undefined }
}

function resumedGroup(config: SchedulerConfig, group: ResumedGroup, order: number): GroupSlot {
  const members = group.members.map((m): ExecutionSlot => ({
    ...m,
    destination: undefined,
    routeEpoch: 0,
    startedAtMs: undefined,
    heldAtMs: undefined,
    cut: false,
  }))
  const isReady = members.every((m) => isResolved(m)) && hasSignal(config, members)
  return {
    groupId: group.groupId,
    dispatchVersion: group.dispatchVersion,
    phase: isReady ? 'ready' : 'running',
    readyOrder: isReady ? order : undefined,
    trainedStep: undefined,
    dispatchedAtMs: undefined,
    startedAtMs: undefined,
    quorumMs: undefined,
    members,
  }
}

function freshCell(policyVersion: number, epoch: number): CellSlot {
  return {
    phase: 'rollout',
    epoch,
    policyVersion,
    publishing: false,
    joined: false,
    joining: false,
    joinFailures: 0,
    restarts: 0,
    claim: undefined,
    accumulated: [],
    early: undefined,
    kept: [],
  }
}

const UNFINISHED: ReadonlySet<string> = new Set(['queued', 'running', 'held', 'retrying'])

/** True until its harness has ended: it counts in the water level. */
export function isUnfinished(member: ExecutionSlot): boolean {
  return UNFINISHED.has(member.phase)
}

export function isResolved(member: ExecutionSlot): boolean {
  return member.phase === 'scored' || member.phase === 'excluded'
}

/** Two scored executions make an advantage; a group of one is its own. */
export function hasSignal(config: SchedulerConfig, members: readonly ExecutionSlot[]): boolean {
  return members.filter((m) => m.phase === 'scored').length >= Math.min(2, config.groupSize)
}

function isExcluded(config: SchedulerConfig, group: GroupSlot): boolean {
  return group.members.every((m) => isResolved(m)) && !hasSignal(config, group.members)
}

/** Members that must have ended before another may be cut. */
export function quorumOf(config: Pick<SchedulerConfig, 'stragglerQuorum' | 'groupSize'>): number {
  // 0.7 x 10 is a little more than 7.
  return Math.ceil(config.stragglerQuorum * config.groupSize - 1e-9)
}

/** Q_b = round((phi + mu) B), with phi as it is now: groups out at a boundary. [groups] */
export function dispatchDepth({ config, carryOver }: Pick<SchedulerState, 'config' | 'carryOver'>): number {
  return Math.round((carryOver + config.stepsPerBurst) * config.groupsPerStep)
}

const COUNTS = [
  'cells',
  'cellSlots',
  'groupSize',
  'groupsPerStep',
  'stepsPerBurst',
  'totalSteps',
  'executionAttempts',
] as const

function reject(message: string): never {
  throw new GyreError(message, { boundary: 'config', code: 'E_CONFIG_SCHEDULER' })
}

/** @throws GyreError E_CONFIG_SCHEDULER naming the first value that makes a run impossible. */
export function checkConfig(config: SchedulerConfig): void {
  for (const name of COUNTS) {
    const value = config[name]
    if (!Number.isInteger(value) || value < 1) reject(`${name} is ${value}: it must be a whole number of at least 1`)
  }
  checkCarryOver(config)
  checkLevers(config)
  if (config.standaloneSlots.some((slots) => !Number.isInteger(slots) || slots < 1)) {
    reject('a standalone engine without slots can serve nothing: give it at least 1 or leave it out')
  }
  if (config.policy === 'colocate' && config.carryOverMax !== 0) {
    reject(`policy colocate trains only what it waited for: set carryOver (phi) to 0 instead of ${config.carryOverMax}`)
  }
  if (config.policy === 'async') checkSplit(config)
}

function checkCarryOver({ carryOver, carryOverMin, carryOverMax }: SchedulerConfig): void {
  if (!(carryOver >= 0 && Number.isFinite(carryOver))) {
    reject(`carryOver (phi) is ${carryOver}: it must be a number of at least 0`)
  }
  if (!(carryOverMin >= 0 && carryOverMin <= carryOver && carryOver <= carryOverMax && Number.isFinite(carryOverMax))) {
    reject(
      `carryOver (phi) is ${carryOver}: it must lie between carryOverMin ${carryOverMin} and carryOverMax ${carryOverMax}`,
    )
  }
}

/**
 * `qwengyre` is the published behaviour, so it has no lever beyond the water level. Levers that are not about roles
 * (phi but under `colocate`, the cut, over-commit) are open to the other policies: a baseline may be tuned too. Those
 * about moves change nothing where no cell moves.
 */
function checkLevers(config: SchedulerConfig): void {
  const { stragglerQuorum, stragglerGrace, overCommit } = config
  if (!(stragglerQuorum > 0 && stragglerQuorum <= 1)) {
    reject(`stragglerQuorum is ${stragglerQuorum}: it must be a share above 0, 1 to cut nothing`)
  }
  if (!(stragglerGrace >= 0 && Number.isFinite(stragglerGrace))) {
    reject(`stragglerGrace is ${stragglerGrace}: it must be a number of at least 0`)
  }
  if (!(overCommit >= 1 && Number.isFinite(overCommit))) {
    reject(`overCommit is ${overCommit}: it must be a number of at least 1`)
  }
  if (config.policy !== 'qwengyre') return
  const added: readonly (readonly [string, boolean])[] = [
    ['demandAware', config.demandAware],
    ['placement balanced', config.placement !== 'latest'],
    [`stragglerQuorum ${stragglerQuorum}`, stragglerQuorum < 1],
    [`overCommit ${overCommit}`, overCommit > 1],
    [`a phi between ${config.carryOverMin} and ${config.carryOverMax}`, config.carryOverMin !== config.carryOverMax],
  ]
  for (const [lever, isThere] of added) {
    if (isThere)
      reject(`policy qwengyre is the published behaviour, without ${lever}: take it out, or use policy elastic`)
  }
}

function checkSplit(config: SchedulerConfig): void {
  const { trainingCells, cells, standaloneSlots } = config
  if (!Number.isInteger(trainingCells) || trainingCells < 1 || trainingCells > cells) {
    reject(`trainingCells is ${trainingCells}: policy async needs between 1 and ${cells} of the ${cells} cells`)
  }
  if (trainingCells === cells && standaloneSlots.length === 0) {
    reject(
      `policy async with all ${cells} cells in training leaves nothing to roll out: add cells or a standalone engine`,
    )
  }
}

function isElastic({ policy }: SchedulerConfig): boolean {
  return policy === 'elastic' || policy === 'qwengyre'
}

/** What will work but surprise: each a sentence for the user. */
export function configWarnings(config: SchedulerConfig): string[] {
  const standalone = config.standaloneSlots.reduce((sum, slots) => sum + slots, 0)
  const rolloutCells = config.policy === 'async' ? config.cells - config.trainingCells : config.cells
  const slots = rolloutCells * config.cellSlots + standalone
  const executions = dispatchDepth({ config, carryOver: config.carryOver }) * config.groupSize
  const carried = Math.round(config.carryOver * config.groupsPerStep) * config.groupSize
  const warnings: string[] = []
  if (executions > slots) {
    warnings.push(
      `a burst starts with ${executions} executions and there are ${slots} slots: ${executions - slots} wait in a queue`,
    )
  }
  if (isElastic(config) && carried > slots - config.cellSlots) {
    warnings.push(
      `the ${carried} executions carried over do not fit the slots that remain when the core trains: training waits for them as if phi were 0`,
    )
  }
  if (config.stragglerQuorum < 1 && quorumOf(config) >= config.groupSize) {
    warnings.push(
      `stragglerQuorum ${config.stragglerQuorum} of ${config.groupSize} executions is all of them: nothing is cut`,
    )
  }
  return warnings
}
