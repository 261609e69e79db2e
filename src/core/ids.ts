declare const brand: unique symbol
type Branded<T, Name extends string> = T & { readonly [brand]: Name }

export type QueryId = Branded<string, 'QueryId'>
export type GroupId = Branded<string, 'GroupId'>
/** One attempt of one harness at one query. A restarted attempt gets a new id. */
export type ExecutionId = Branded<string, 'ExecutionId'>
export type CallId = Branded<string, 'CallId'>
export type CellId = Branded<string, 'CellId'>
/** A rollout destination: a cell in rollout, or a standalone engine. */
export type EngineId = Branded<string, 'EngineId'>

export const queryId = (text: string): QueryId => text as QueryId
export const groupId = (text: string): GroupId => text as GroupId
export const executionId = (text: string): ExecutionId => text as ExecutionId
export const callId = (text: string): CallId => text as CallId
export const cellId = (text: string): CellId => text as CellId
export const engineId = (text: string): EngineId => text as EngineId
