/** @file The numbers that follow from a config. Pure. */
import type { RunConfig } from './resolve.ts'

export interface DerivedNumbers {
  /** Q_b = round((phi + mu) B): groups allowed out at a boundary. [groups] */
  readonly dispatchDepth: number
  /** The same in executions: Q_b N. */
  readonly executionsOut: number
  /** Slots of all cells while they roll out. [executions] */
  readonly rolloutCapacity: number
  /** Executions that may be unfinished when the first cell moves to training. [executions] */
  readonly firstMoveAt: number
  /** Policy versions are published so often. [times] */
  readonly bursts: number
  /** Hard bound of staleness: mu - 1 + mu ceil(phi / mu), of the largest phi. [steps] */
  readonly stalenessBound: number
  /** What mostly occurs: 0 to phi + mu - 1, so on average half of it. [steps] */
  readonly stalenessExpected: number
  /** Consumed by training, without restarts. [executions] */
  readonly trainingExecutions: number
}

export function derivedNumbers(config: RunConfig): DerivedNumbers {
  const { groupSize } = config.rollout
  const { groupsPerStep, stepsPerBurst, steps } = config.training
  const { policy, cells, slotsPerCell, carryOver, carryOverMax, trainingCells } = config.elastic
  const beside = standaloneSlots(config)
  const moves = policy === 'elastic' || policy === 'qwengyre'
  const dispatchDepth = Math.round((carryOver + stepsPerBurst) * groupsPerStep)
  const rolloutCells = policy === 'async' ? cells - trainingCells : cells
  return {
    dispatchDepth,
    executionsOut: dispatchDepth * groupSize,
    rolloutCapacity: rolloutCells * slotsPerCell + beside,
    firstMoveAt: moves ? (cells - 1) * slotsPerCell + beside : 0,
    bursts: Math.ceil(steps / stepsPerBurst),
    stalenessBound: stepsPerBurst - 1 + stepsPerBurst * Math.ceil(carryOverMax / stepsPerBurst),
    stalenessExpected: (stepsPerBurst - 1) / 2 + carryOver,
    trainingExecutions: steps * groupsPerStep * groupSize,
  }
}

/** C_s: executions the engines beside the cells serve at once. */
export function standaloneSlots({ elastic }: RunConfig): number {
  return elastic.standalone.reduce((sum, { slots }) => sum + slots, 0)
}

function leversText(elastic: RunConfig['elastic']): string {
  const { stragglerQuorum, stragglerGrace, overCommit, demandAware, placement, kvHandover, earlyForward } = elastic
  return [
    `carryOver ${carryOverText(elastic)}`,
    stragglerQuorum < 1 ? `stragglerQuorum ${stragglerQuorum} with grace ${stragglerGrace}` : 'no straggler cut',
    overCommit > 1 ? `overCommit ${overCommit}` : 'no over-commit',
    `placement ${placement}`,
    ...(demandAware ? ['demandAware'] : []),
    ...(kvHandover ? ['kvHandover'] : []),
    ...(earlyForward ? ['earlyForward'] : []),
  ].join(', ')
}

/** phi as it is written: one number, or a range. */
function carryOverText({ carryOver, carryOverMin, carryOverMax }: RunConfig['elastic']): string {
  return carryOverMin === carryOverMax ? `${carryOver}` : `${carryOver}, ${carryOverMin} to ${carryOverMax}`
}

/** What `--dry-run` prints below the resolved config. */
export function dryRunReport(config: RunConfig): string {
  const n = derivedNumbers(config)
  const { rollout, training, elastic } = config
  const beside = standaloneSlots(config)
  const rows: readonly (readonly [string, string, string])[] = [
    [
      'dispatch depth Q_b',
      `${n.dispatchDepth} groups`,
      `(${elastic.carryOver} + ${training.stepsPerBurst}) x ${training.groupsPerStep}${elastic.carryOverMin === elastic.carryOverMax ? '' : `; phi ${carryOverText(elastic)}`}`,
    ],
    [
      'executions out at once',
      `${n.executionsOut}`,
      `x ${rollout.groupSize} per group; ${Math.max(0, n.executionsOut - n.rolloutCapacity)} of them queue for a slot`,
    ],
    [
      'rollout capacity',
      `${n.rolloutCapacity} executions`,
      `${elastic.policy}, ${elastic.cells} cells x ${elastic.slotsPerCell} slots${beside === 0 ? '' : ` + ${beside} of standalone engines`}`,
    ],
    ...(n.firstMoveAt > 0
      ? [['first cell may train at', `${n.firstMoveAt} unfinished`, 'water level <= capacity that stays'] as const]
      : []),
    ['bursts', `${n.bursts}`, `${training.steps} steps, ${training.stepsPerBurst} per burst`],
    ['staleness, typical mean', `${n.stalenessExpected.toFixed(2)} steps`, '(mu - 1) / 2 + phi'],
    ['staleness, hard bound', `${n.stalenessBound} steps`, 'mu - 1 + mu ceil(phi / mu)'],
    ['levers', '', leversText(elastic)],
    ['executions trained on', `${n.trainingExecutions}`, 'restarts not counted'],
    ['run folder', config.runFolder, ''],
  ]
  const width = Math.max(...rows.map(([name]) => name.length))
  const valueWidth = Math.max(...rows.slice(0, -1).map(([, value]) => value.length))
  return rows
    .map(([name, value, why]) => `${name.padEnd(width)}  ${value.padEnd(valueWidth)}  ${why}`.trimEnd())
    .join('\n')
}
