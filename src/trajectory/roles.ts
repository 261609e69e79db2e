import type { LeafRole } from './node.ts'

/** Highest priority first. */
export const ROLE_PRIORITY: readonly LeafRole[] = ['main', 'main-summary', 'sub-agent', 'sub-agent-summary', 'side']

/** What became of a leaf. `no-gradient` is set by the run, when the leaf's whole group teaches nothing. */
export type LeafFate = 'picked' | 'masked' | 'over-budget' | 'side' | 'orphan' | 'aborted' | 'too-long' | 'no-gradient'
