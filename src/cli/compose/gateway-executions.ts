/**
 * @file The executions of a gateway that serves traces only: opened, listed, closed, and opened again after a restart.
 *
 * Each is a row of the store with its calls, as in a run, so everything that reads a run reads these too. What it takes
 * to open one again stands beside it; its key does not, for it follows from the gateway's secret.
 */
import { executionId, groupId, queryId } from '../../core/ids.ts'
import type { CallId, EngineId, ExecutionId } from '../../core/ids.ts'
import { GyreError } from '../../core/errors.ts'
import { seededRng } from '../../core/rng.ts'
import type { ExecutionEndpoint, ForwardingPoint, OpenExecution, RecordSink } from '../../ports/forwarding.ts'
import type { ExecutionRow, Store } from '../../ports/store.ts'
import { admit } from '../../trajectory/admission.ts'
import type { LeafReport } from '../../trajectory/admission.ts'
import type { CallRecord } from '../../trajectory/node.ts'
import type { HarnessProfile } from '../../trajectory/profile.ts'
import { ExecutionTree } from '../../trajectory/tree.ts'
import { executionKey } from './gateway-secrets.ts'

export interface ExecutionRequest {
  readonly id?: string | undefined
  readonly profile?: HarnessProfile | string | undefined
  readonly sampling?: Partial<OpenExecution['sampling']> | undefined
}

export interface OpenedExecution extends ExecutionEndpoint {
  readonly executionId: ExecutionId
}

export interface ListedExecution {
  readonly executionId: ExecutionId
  readonly state: 'open' | 'closed'
  readonly profile: string
  readonly modelCalls: number
  readonly sampledTokens: number
}

export interface ClosedExecution extends ListedExecution {
  /** Each distinct prefix once. [tokens] */
  readonly distinctTokens: number
  readonly leaves: readonly Omit<LeafReport, 'executionId'>[]
}

/** Stored beside an execution. */
interface Facts {
  readonly profile: HarnessProfile | string
  readonly sampling: OpenExecution['sampling']
}

interface Totals {
  modelCalls: number
  sampledTokens: number
}

export interface GatewayExecutionsDeps {
  readonly store: Store
  readonly secret: string
  readonly engineId: EngineId
  readonly defaults: Facts
  /** ms since the Unix epoch. */
  readonly now: () => number
}

const GROUP = groupId('gateway')
const QUERY = queryId('gateway')
const ID = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$/
/** Trajectories of one execution, as a run admits them by default. */
const J_MAX = 5

export class GatewayExecutions {
  readonly #deps: GatewayExecutionsDeps
  readonly #totals = new Map<ExecutionId, Totals>()
  #forwarding: ForwardingPoint | undefined

  constructor(deps: GatewayExecutionsDeps) {
    this.#deps = deps
  }

  /** Where the gateway writes: the store, with a count kept of what went by. */
  get sink(): RecordSink {
    const { store } = this.#deps
    return {
      appendCall: async (record: CallRecord) => {
        await store.appendCall(record)
        this.#count(record)
      },
      markOrphan: async (id: ExecutionId, callId: CallId) => store.markOrphan(id, callId),
    }
  }

  /** Opens again what was open when the gateway of this store ended. Call once, before anything else. */
  start(forwarding: ForwardingPoint): readonly OpenedExecution[] {
    this.#forwarding = forwarding
    const open = this.#deps.store.executions().filter((row) => row.state === 'running')
    return open.map(({ executionId: id }) => this.#open(id, this.#facts(id), this.#deps.store.calls(id)))
  }

  /** @throws GyreError E_GATEWAY_EXECUTION for an id that cannot be one, E_GATEWAY_EXECUTION_EXISTS for a used one. */
  open({ id, profile, sampling }: ExecutionRequest): OpenedExecution {
    const { store, defaults, now } = this.#deps
    const rows = store.executions()
    const name = executionId(id ?? freshName(rows))
    if (!ID.test(name)) {
      throw refused(
        'E_GATEWAY_EXECUTION',
        `"${name}" cannot be the id of an execution: take letters, digits, "_", "." and "-"`,
      )
    }
    if (rows.some((row) => row.executionId === name)) {
      throw refused('E_GATEWAY_EXECUTION_EXISTS', `there is an execution "${name}" already: take another id, or none`)
    }
    const facts: Facts = {
      profile: profile ?? defaults.profile,
      sampling: { ...defaults.sampling, ...sampling },
    }
    store.setMeta(metaKey(name), JSON.stringify(facts))
    const row = rowOf(name, rows.length, now())
    if (rows.length === 0) store.putGroup(GROUP_ROW, [row])
    else store.putExecution(row)
    return this.#open(name, facts, [])
  }

  list(): readonly ListedExecution[] {
    return this.#deps.store.executions().map((row) => this.#listed(row))
  }

  /** @throws GyreError E_GATEWAY_UNKNOWN_EXECUTION. */
  async close(id: string): Promise<ClosedExecution> {
    const { store, now } = this.#deps
    const row = store.execution(executionId(id))
    if (row === undefined) throw refused('E_GATEWAY_UNKNOWN_EXECUTION', `there is no execution "${id}"`)
    await this.#gateway.closeExecution(row.executionId)
    if (row.state === 'running') {
      store.putExecution({ ...row, state: 'scored', outcome: 'finished', endedAtMs: now() })
    }
    return this.#summary(row.executionId)
  }

  /** Ends what runs and leaves it to be opened again; what it has so far can be read. */
  async suspend(): Promise<void> {
    for (const row of this.#deps.store.executions()) {
      if (row.state !== 'running') continue
      await this.#gateway.closeExecution(row.executionId)
      this.#summary(row.executionId)
    }
  }

  get #gateway(): ForwardingPoint {
    if (this.#forwarding === undefined) throw new Error('start() comes first')
    return this.#forwarding
  }

  #open(id: ExecutionId, { profile, sampling }: Facts, records: readonly CallRecord[]): OpenedExecution {
    for (const record of records) this.#count(record)
    const apiKey = executionKey(this.#deps.secret, id)
    const spec = { executionId: id, profile, sampling, maxCalls: 0, apiKey, records }
    const { baseUrl } = this.#gateway.openExecution(spec)
    this.#gateway.setRoutes([{ executionId: id, engineId: this.#deps.engineId, routeEpoch: 0 }])
    return { executionId: id, baseUrl, apiKey }
  }

  /** Why each branch would be trained or not, kept for `gyre tree`. */
  #summary(id: ExecutionId): ClosedExecution {
    const { store } = this.#deps
    const records = store.calls(id)
    const tree = ExecutionTree.fromRecords(id, records)
    const { leaves } = admit(tree, { jMax: J_MAX, rng: seededRng(0) })
    store.putLeaves(id, leaves)
    const row = store.execution(id)
    const totals = totalsOf(records)
    this.#totals.set(id, totals)
    store.setMeta(totalsKey(id), JSON.stringify(totals))
    return {
      ...this.#listed(row ?? rowOf(id, 0, 0)),
      distinctTokens: tree.tokenCount,
      leaves: leaves.map(({ leaf, role, fate, policyTokens, trainedTokens }) => {
        return { leaf, role, fate, policyTokens, trainedTokens }
      }),
    }
  }

  #listed({ executionId: id, state }: ExecutionRow): ListedExecution {
    const { profile } = this.#facts(id)
    const totals = this.#totals.get(id) ?? this.#storedTotals(id)
    this.#totals.set(id, totals)
    const name = typeof profile === 'string' ? profile : profile.name
    return { executionId: id, state: state === 'running' ? 'open' : 'closed', profile: name, ...totals }
  }

  /** Kept when it ended, so that a list does not read every token of a store. */
  #storedTotals(id: ExecutionId): Totals {
    const stored = this.#deps.store.getMeta(totalsKey(id))
    return stored === undefined ? totalsOf(this.#deps.store.calls(id)) : (JSON.parse(stored) as Totals)
  }

  #facts(id: ExecutionId): Facts {
    const stored = this.#deps.store.getMeta(metaKey(id))
    return stored === undefined ? this.#deps.defaults : (JSON.parse(stored) as Facts)
  }

  #count(record: CallRecord): void {
    const totals = this.#totals.get(record.executionId) ?? { modelCalls: 0, sampledTokens: 0 }
    totals.modelCalls++
    totals.sampledTokens += record.nodes.at(-1)?.tokenIds.length ?? 0
    this.#totals.set(record.executionId, totals)
  }
}

const GROUP_ROW = {
  groupId: GROUP,
  queryId: QUERY,
  taskName: 'gateway',
  dispatchVersion: 0,
  burst: 0,
  // Nobody trains on it by itself.
  state: 'evaluation',
  consumedStep: undefined,
} as const

function rowOf(id: ExecutionId, member: number, startedAtMs: number): ExecutionRow {
  return {
    executionId: id,
    groupId: GROUP,
    member,
    attempt: 0,
    state: 'running',
    outcome: undefined,
    reward: undefined,
    parts: {},
    errorCode: undefined,
    errorMessage: undefined,
    startedAtMs,
    endedAtMs: undefined,
  }
}

function totalsOf(records: readonly CallRecord[]): Totals {
  const sampledTokens = records.reduce((sum, record) => sum + (record.nodes.at(-1)?.tokenIds.length ?? 0), 0)
  return { modelCalls: records.length, sampledTokens }
}

function freshName(rows: readonly ExecutionRow[]): string {
  const used = new Set<string>(rows.map((row) => row.executionId))
  for (let n = rows.length; ; n++) if (!used.has(`x${n}`)) return `x${n}`
}

function totalsKey(id: string): string {
  return `gateway totals ${id}`
}

function metaKey(id: string): string {
  return `gateway execution ${id}`
}

function refused(code: `E_GATEWAY_${Uppercase<string>}`, message: string): GyreError {
  return new GyreError(message, { boundary: 'gateway', code })
}
