/** @file Key-value blocks of a leaving cell, fetched by the new destinations before its requests are cancelled (R2T). */
import { errorText } from '../core/errors.ts'
import type { ExecutionId } from '../core/ids.ts'
import type { Cell, FetchedKv } from '../ports/cell.ts'
import type { CommandOf } from './controller-types.ts'
import type { Waits } from './controller-waits.ts'

export const NOTHING_FETCHED: FetchedKv = { executions: 0, tokens: 0, bytes: 0 }

export interface HandOverDeps {
  readonly waits: Waits
  /** [ms] */
  readonly handoverMs: number
  readonly cell: (index: number) => Cell
  /** Fencing token of a destination. */
  readonly epochOf: (index: number) => number
  /** Why a part of it did not come; it is computed again. */
  readonly onMiss: (reason: string) => void
}

/** Never rejects, and ends within `handoverMs`: what did not come by then is computed again. */
export async function handOver(deps: HandOverDeps, command: CommandOf<'hand-over'>): Promise<FetchedKv> {
  const arrived: FetchedKv[] = []
  const what = `handing over what cell ${command.cell} has cached`
  try {
    await deps.waits.within(fetchAll(deps, command, arrived), deps.handoverMs, what)
  } catch (error) {
    deps.onMiss(errorText(error))
  }
  return arrived.reduce(sum, NOTHING_FETCHED)
}

async function fetchAll(deps: HandOverDeps, command: CommandOf<'hand-over'>, arrived: FetchedKv[]): Promise<void> {
  const source = deps.cell(command.cell)
  const byDestination = destinationsOf(command)
  const wanted = [...byDestination.values()].flat()
  if (wanted.length === 0) return
  // Entering training frees them; twice the time covers a source that never gets there.
  const pinned = await source.pinKv(command.epoch, wanted, 2 * deps.handoverMs)
  const cached = new Set(pinned.map((kv) => kv.executionId))
  const fetches = [...byDestination].map(async ([index, executionIds]) => {
    const ids = executionIds.filter((id) => cached.has(id))
    if (ids.length === 0) return
    try {
      arrived.push(await deps.cell(index).fetchKv(deps.epochOf(index), source.address, ids))
    } catch (error) {
      deps.onMiss(errorText(error))
    }
  })
  await Promise.all(fetches)
}

/** Cells only: a standalone engine has no way to take blocks. */
function destinationsOf({ moves }: CommandOf<'hand-over'>): ReadonlyMap<number, ExecutionId[]> {
  const out = new Map<number, ExecutionId[]>()
  for (const { executionId, destination } of moves) {
    if (destination.kind !== 'cell') continue
    const ids = out.get(destination.index)
    if (ids === undefined) out.set(destination.index, [executionId])
    else ids.push(executionId)
  }
  return out
}

function sum(a: FetchedKv, b: FetchedKv): FetchedKv {
  return { executions: a.executions + b.executions, tokens: a.tokens + b.tokens, bytes: a.bytes + b.bytes }
}
