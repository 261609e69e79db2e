/** @file Every safety rule is needed: without it, random histories break an invariant or the books of the world. */
import { describe, expect, test } from 'vitest'
import { configOf, firstViolation } from '../../test/support/scheduler-histories.ts'
import type { Shape } from '../../test/support/scheduler-histories.ts'
import type { WorldFaults } from '../../test/support/scheduler-faults.ts'
import { advanceWith } from './advance.ts'
import { GUARDS } from './guards.ts'
import type { Guards } from './guards.ts'
import type { SchedulerConfig } from './types.ts'

interface Mutation {
  /** The rules that are broken: the one that is shown, and what would stand in for it. */
  readonly broken: Partial<Guards>
  readonly config?: Partial<SchedulerConfig>
  readonly faults?: WorldFaults
  /** What notices. */
  readonly caught: RegExp
}

const SHAPE: Shape = {
  cells: 3,
  cellSlots: 3,
  standaloneSlots: [],
  groupSize: 2,
  groupsPerStep: 2,
  stepsPerBurst: 1,
  carryOver: 1,
  carryOverBelow: 0,
  carryOverAbove: 0,
  stragglerQuorum: 1,
  stragglerGrace: 0,
  overCommit: 1,
  kvHandover: true,
  earlyForward: true,
  totalSteps: 8,
  trainingCells: 1,
  demandAware: false,
  placement: 'latest',
  executionAttempts: 9,
}
const BASE = configOf('elastic', SHAPE)
const NO_CARRY_OVER = { carryOver: 0, carryOverMin: 0, carryOverMax: 0 }
const BESIDE = { standaloneSlots: [3, 2], cells: 2 }
/** Few slots and many attempts: what a level off by one cell needs to show. */
const TIGHT = { ...NO_CARRY_OVER, cells: 2, cellSlots: 4, groupSize: 4, groupsPerStep: 1, totalSteps: 12 }
/** Cells that train while engines beside them hold every execution: most groups are waited for. */
const EARLY = { groupSize: 6, cellSlots: 40, totalSteps: 12, standaloneSlots: [40] }
const DEATHS = { deaths: 16, lostAnswers: 8, executionFailures: 48 }
const ECHOES = { ...DEATHS, echoes: 200 }

const yes = (): boolean => true
const no = (): boolean => false

const MUTATIONS: Readonly<Record<keyof Guards, Mutation>> = {
  waterLevelAllows: {
    // The reservation refuses most of these moves too; attempts that lost their cell slip past it.
    broken: { waterLevelAllows: (level, capacity) => level <= capacity },
    config: TIGHT,
    faults: DEATHS,
    caught: /I2 a move left too little capacity/,
  },
  mayAssign: { broken: { mayAssign: yes }, caught: /I8/ },
  isOfCell: { broken: { isOfCell: yes }, faults: ECHOES, caught: /I\d|E1/ },
  isOfCore: {
    broken: { isOfCore: yes },
    // Steps that are undone and done again, with reports of the first time still on their way.
    config: { ...NO_CARRY_OVER, cells: 2, groupsPerStep: 1, stepsPerBurst: 3, totalSteps: 12 },
    faults: { deaths: 60, echoes: 400 },
    caught: /I6|I7/,
  },
  isOfEngine: {
    broken: { isOfEngine: yes },
    config: BESIDE,
    faults: { engineDeaths: 40, echoes: 200 },
    caught: /I10 a route to an engine that has not come back/,
  },
  isOfTransfer: {
    broken: { isOfTransfer: (transfer, _, phase) => transfer.phase === phase },
    faults: ECHOES,
    caught: /I5|I10/,
  },
  isOfOpenStep: { broken: { isOfOpenStep: yes }, faults: { echoes: 200 }, caught: /I7/ },
  isOfStep: { broken: { isOfStep: yes }, faults: ECHOES, caught: /I7/ },
  isOfClaim: { broken: { isOfClaim: yes }, faults: { echoes: 200 }, caught: /I7/ },
  isOfVersion: { broken: { isOfVersion: yes }, faults: ECHOES, caught: /E1/ },
  isAskedFor: { broken: { isAskedFor: yes }, faults: { echoes: 20 }, caught: /I1|I9|the run failed/ },
  isOfCheckpoint: { broken: { isOfCheckpoint: yes }, faults: ECHOES, caught: /I\d|E1/ },
  isRetrying: { broken: { isRetrying: yes }, faults: DEATHS, caught: /I1|I9/ },
  isIdle: { broken: { isIdle: yes }, faults: { echoes: 20 }, caught: /I9/ },
  mayBegin: { broken: { mayBegin: yes }, faults: { stops: 1 }, caught: /after a stop|I3 a stopped run/ },
  hasRoom: { broken: { hasRoom: yes }, config: { cellSlots: 2 }, caught: /I2 .* over its slots/ },
  mayServe: { broken: { mayServe: yes }, caught: /I2 cell \d owns executions it does not serve/ },
  engineServes: {
    broken: { engineServes: yes },
    config: BESIDE,
    faults: { engineDeaths: 10 },
    caught: /I2 engine \d owns executions it does not serve/,
  },
  isReserved: {
    // With a right water level there is always room.
    broken: { isReserved: yes, waterLevelAllows: yes },
    caught: /I4 a running execution owns no slot/,
  },
  nextRouteEpoch: { broken: { nextRouteEpoch: (epoch) => epoch }, caught: /I4 a route changed without a new epoch/ },
  mayLeave: {
    broken: { mayLeave: (_, cell) => cell.phase === 'rollout' || cell.phase === 'failed' },
    faults: DEATHS,
    caught: /I\d|E1/,
  },
  isLevelKnown: {
    broken: { isLevelKnown: yes },
    config: { ...NO_CARRY_OVER, cells: 4 },
    faults: { exclusions: 60 },
    caught: /I2 a move left too little capacity/,
  },
  mayGoOn: { broken: { mayGoOn: yes }, faults: DEATHS, caught: /I2 a move goes on|I3 a stopped run/ },
  mayTake: { broken: { mayTake: yes }, caught: /I9 too many groups in a step/ },
  mayJoin: {
    broken: { mayJoin: yes },
    config: { cells: 4 },
    faults: DEATHS,
    caught: /I6 .* joins while weights change/,
  },
  coreIsIn: { broken: { coreIsIn: yes }, caught: /I6 members without the core/ },
  mayClaim: { broken: { mayClaim: yes }, caught: /I6 .* works without being a member|I7 cell . keeps gradients/ },
  isOfEarly: {
    broken: { isOfEarly: yes },
    config: EARLY,
    faults: { echoes: 400 },
    caught: /I7 a gradient is applied that the cell does not keep/,
  },
  mayApply: {
    broken: { mayApply: yes },
    config: EARLY,
    caught: /I7 a gradient is applied that the cell does not keep/,
  },
  staysKept: {
    broken: { staysKept: yes },
    config: EARLY,
    caught: /I7 a gradient is applied that the cell does not keep/,
  },
  returnsWork: { broken: { returnsWork: no }, faults: DEATHS, caught: /I7/ },
  isComplete: { broken: { isComplete: yes }, caught: /I7 a step ends/ },
  isReducing: { broken: { isReducing: yes }, faults: ECHOES, caught: /I7/ },
  mustUndo: { broken: { mustUndo: no }, faults: DEATHS, caught: /I6/ },
  isAcked: { broken: { isAcked: yes }, caught: /E1/ },
  roomForGroups: { broken: { roomForGroups: () => 1000 }, caught: /I9 more groups than the dispatch depth/ },
  isUnfinished: { broken: { isUnfinished: yes }, caught: /I1/ },
  isUnresolved: { broken: { isUnresolved: yes }, faults: { ...DEATHS, echoes: 100, exclusions: 9 }, caught: /I9|I1/ },
  isGroupDone: { broken: { isGroupDone: (group) => group.phase === 'running' }, caught: /I1|I9/ },
  mayRetry: {
    broken: { mayRetry: yes },
    config: { executionAttempts: 1 },
    faults: DEATHS,
    caught: /I4 an attempt beyond the budget/,
  },
  mayRestart: {
    broken: { mayRestart: yes },
    config: { cellRestarts: 1 },
    faults: DEATHS,
    caught: /restarted beyond the budget/,
  },
  mayLoseMore: {
    broken: { mayLoseMore: yes },
    config: { excludedGroupsLimit: 1 },
    faults: { exclusions: 20 },
    caught: /lost in a row than the limit/,
  },
  timeOf: { broken: { timeOf: (_, atMs) => atMs }, caught: /the clock went back/ },
}

describe('a broken rule is noticed within 500 histories', () => {
  test.each(Object.entries(MUTATIONS))(
    '%s',
    (_, { broken, config, faults, caught }) => {
      const guards = { ...GUARDS, ...broken }
      const found = firstViolation({ ...BASE, ...config }, faults ?? {}, (state, event, atMs) =>
        advanceWith(guards, state, event, atMs),
      )
      expect(found).toMatch(caught)
    },
    120_000,
  )
})
