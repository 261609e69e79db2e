/** @file Scheduler configurations of tests that are not about the levers beyond the water level. */
import type { SchedulerConfig } from '../../src/scheduler/types.ts'

const OFF = { stragglerQuorum: 1, stragglerGrace: 0, overCommit: 1, kvHandover: false, earlyForward: false } as const

type Lever = keyof typeof OFF | 'carryOverMin' | 'carryOverMax'
export type LeverlessConfig = Omit<SchedulerConfig, Lever> & Partial<Pick<SchedulerConfig, Lever>>

/** Every lever off that the configuration does not set: phi stays what it is, nothing is cut or over-committed. */
export function withLeversOff(config: LeverlessConfig): SchedulerConfig {
  return { ...OFF, carryOverMin: config.carryOver, carryOverMax: config.carryOver, ...config }
}
