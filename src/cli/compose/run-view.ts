/** @file The picture of a run for the display, from what the controller and the books say. Pure. */
import type { RunConfig } from '../../config/resolve.ts'
import type { ControllerEvent, ControllerSnapshot } from '../../run/controller-types.ts'
import type { RunView, StandaloneView, TransfersView } from '../../telemetry/panel.ts'
import { standaloneIds } from './standalone.ts'

/** What the controller shows of a run; `RunProgress` knows the rest. */
export type ControllerView = Pick<
  RunView,
  'burst' | 'policyVersion' | 'cells' | 'standalone' | 'carryOver' | 'waterLevel' | 'capacity'
> & {
  readonly executions: Pick<RunView['executions'], 'live' | 'queued' | 'held'>
  readonly groups: Pick<RunView['groups'], 'outstanding' | 'ready'>
}

/** Before the elastic loop begins there is no snapshot. */
export function controllerView({ elastic }: RunConfig, snapshot: ControllerSnapshot | undefined): ControllerView {
  if (snapshot === undefined) {
    return {
      burst: 0,
      policyVersion: 0,
      cells: [],
      standalone: [],
      carryOver: elastic.carryOver,
      waterLevel: 0,
      capacity: elastic.cells * elastic.slotsPerCell,
      executions: { live: 0, queued: 0, held: 0 },
      groups: { outstanding: 0, ready: 0 },
    }
  }
  const { burst, policyVersion, carryOver, waterLevel, capacity } = snapshot
  return {
    burst,
    policyVersion,
    carryOver,
    waterLevel,
    capacity,
    cells: snapshot.cells.map((cell) => ({ ...cell, slots: elastic.slotsPerCell })),
    standalone: standaloneViews(elastic.standalone, snapshot),
    executions: {
      live: snapshot.liveExecutions,
      queued: snapshot.queuedExecutions,
      held: snapshot.heldExecutions,
    },
    groups: { outstanding: snapshot.outstandingGroups, ready: snapshot.readyGroups },
  }
}

function standaloneViews(
  entries: RunConfig['elastic']['standalone'],
  snapshot: ControllerSnapshot,
): readonly StandaloneView[] {
  const names = standaloneIds(entries)
  return snapshot.standalone.map((engine, index) => ({
    ...engine,
    name: names[index] ?? `engine-${index}`,
    slots: entries[index]?.slots ?? 0,
  }))
}

/** The transfers with one more. */
export function withTransfer(
  before: TransfersView | undefined,
  event: Extract<ControllerEvent, { readonly kind: 'role-transfer' }>,
): TransfersView {
  return {
    count: (before?.count ?? 0) + 1,
    lastMs: event.to === 'training' ? event.durationMs : (before?.lastMs ?? event.durationMs),
    tokensHandedOver: (before?.tokensHandedOver ?? 0) + event.tokensHandedOver,
  }
}
