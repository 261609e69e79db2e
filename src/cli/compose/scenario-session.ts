/**
 * @file Runs a real harness on a scenario: gateway, store, sandbox and a scripted policy around it.
 *
 * What comes back is everything a recording or a test wants to look at. The session owns its gateway, sandbox and
 * store until it is disposed of.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { ScriptedEngine } from '../../adapters/engine/scripted/scripted.ts'
import { ProcessSandbox } from '../../adapters/sandbox/process/process-sandbox.ts'
import { openSqliteStore } from '../../adapters/store/sqlite/sqlite-store.ts'
import { engineId, executionId, groupId, queryId } from '../../core/ids.ts'
import type { ExecutionId } from '../../core/ids.ts'
import { createGateway } from '../../gateway/gateway.ts'
import type { Gateway, GatewayDeps } from '../../gateway/gateway.ts'
import type { TappedExchange } from '../../gateway/taps.ts'
import type { Engine, GenerateRequest } from '../../ports/engine.ts'
import type { ForwardingPoint, ForwardingStats } from '../../ports/forwarding.ts'
import type { Harness } from '../../ports/harness.ts'
import type { ProcessEnd, Sandbox, SandboxInstance } from '../../ports/sandbox.ts'
import type { ExecutionRow, Store } from '../../ports/store.ts'
import type { Task } from '../../ports/task.ts'
import { byteChatCodec } from '../../recording/byte-chat-codec.ts'
import { startFaultProxy } from '../../recording/fault-proxy.ts'
import type { Scenario, ScenarioRun } from '../../recording/scenario.ts'
import { scenarioScript } from '../../recording/scenario-script.ts'
import type { ChatCodec } from '../../tokens/codec.ts'
import type { CallRecord } from '../../trajectory/node.ts'
import { harnessProfile } from '../../trajectory/profiles.ts'
import { ExecutionTree } from '../../trajectory/tree.ts'
import { MODEL_NAME } from './adapters.ts'
import { Cleanup } from './cleanup.ts'

export interface ScenarioOptions {
  readonly scenario: Scenario
  /** Makes the harness for one run, with its arguments and environment. */
  readonly harness: (run: ScenarioRun) => Harness
  /** Name of the harness profile. */
  readonly profile: string
  /** Host folder for the store, the logs and the task; made when it is missing, and left behind. */
  readonly folder: string
  /** Default: bytes. */
  readonly codec?: ChatCodec
  /** Default: plain processes. */
  readonly sandbox?: Sandbox
  /** Put around the scripted engine. */
  readonly wrapEngine?: (engine: Engine) => Engine
  readonly limits?: NonNullable<GatewayDeps['limits']>
  readonly progress?: (message: string) => void
  /** Told when the harness is about to start: who moves the session between engines begins here. */
  readonly onOpen?: (opened: OpenedSession) => void
  /** Looks at the sandbox after the last run, before it is removed. */
  readonly inspect?: (sandbox: SandboxInstance) => void | Promise<void>
  readonly stop?: AbortSignal
}

export interface OpenedSession {
  readonly gateway: ForwardingPoint
  readonly executionId: ExecutionId
  /** The scripted policy, as the gateway has it. */
  readonly engine: Engine
}

export interface SessionResult {
  readonly executionId: ExecutionId
  /** Open until the session is disposed of. */
  readonly store: Store
  /** From the store, in commit order. */
  readonly records: readonly CallRecord[]
  /** Rebuilt from the records. */
  readonly tree: ExecutionTree
  readonly stats: ForwardingStats
  /** By arrival. */
  readonly exchanges: readonly TappedExchange[]
  /** The whole context the engine first saw, by call. */
  readonly contexts: ReadonlyMap<string, Int32Array>
  /** How each run of the harness ended. */
  readonly ends: readonly ProcessEnd[]
  /** What the gateway called a failure of its own. */
  readonly failures: readonly unknown[]
  /** What the harness said where no rule of the scenario held. */
  readonly misses: readonly string[]
  /** Arrivals of faults that never came. */
  readonly missedFaults: readonly number[]
  /** Folders of this machine that the harness saw. */
  readonly folders: readonly string[]
  [Symbol.asyncDispose](): Promise<void>
}

const SESSION = executionId('session')
const ENGINE = engineId('script')

/** @throws GyreError of the harness or sandbox when it cannot be started; how the harness ended is in the result. */
export async function runScenario(options: ScenarioOptions): Promise<SessionResult> {
  const cleanup = new Cleanup((text) => options.progress?.(text))
  try {
    return await play(options, cleanup)
  } catch (error) {
    await cleanup.close()
    throw error
  }
}

async function play(options: ScenarioOptions, cleanup: Cleanup): Promise<SessionResult> {
  const { scenario, folder, profile } = options
  mkdirSync(folder, { recursive: true })
  const store = openSqliteStore(join(folder, 'ledger.sqlite'))
  cleanup.add('store', () => store.close())
  putRows(store, 'running')
  const codec = options.codec ?? byteChatCodec()
  const seen = new Observations()
  const gateway = await createGateway({
    codec,
    sink: store,
    model: MODEL_NAME,
    maxContext: scenario.contextWindow,
    onFailure: (error) => seen.failures.push(error),
    onExchange: (exchange) => seen.exchanges.push(exchange),
    ...(options.limits === undefined ? {} : { limits: options.limits }),
  })
  cleanup.add('gateway', async () => gateway.close())
  const script = scenarioScript(scenario, codec, harnessProfile(profile), {
    onMiss: (text) => seen.misses.push(text),
  })
  const engine = seen.watch(new ScriptedEngine({ id: ENGINE, script }))
  const given = options.wrapEngine?.(engine) ?? engine
  gateway.setEngine(given)
  const proxy = scenario.faults.length === 0 ? undefined : await startFaultProxy(gateway.url, scenario.faults)
  if (proxy !== undefined) cleanup.add('fault proxy', async () => proxy.close())
  const { ends, folders } = await runHarness(options, gateway, given, proxy?.url ?? gateway.url)
  putRows(store, 'finished')
  const records = store.calls(SESSION)
  return {
    executionId: SESSION,
    store,
    records,
    tree: ExecutionTree.fromRecords(SESSION, records),
    stats: gateway.stats(),
    exchanges: seen.exchanges.toSorted((a, b) => a.arrival - b.arrival),
    contexts: seen.contexts,
    ends,
    failures: seen.failures,
    misses: seen.misses,
    missedFaults: scenario.faults.map(({ arrival }) => arrival).filter((arrival) => !proxy?.happened.has(arrival)),
    folders,
    [Symbol.asyncDispose]: async () => cleanup.close(),
  }
}

class Observations {
  readonly exchanges: TappedExchange[] = []
  readonly contexts = new Map<string, Int32Array>()
  readonly failures: unknown[] = []
  readonly misses: string[] = []

  watch(engine: Engine): Engine {
    return {
      id: engine.id,
      generate: (request: GenerateRequest, signal: AbortSignal) => {
        if (!this.contexts.has(request.requestId)) this.contexts.set(request.requestId, request.promptIds)
        return engine.generate(request, signal)
      },
    }
  }
}

/** All runs share one sandbox, and so one home and one workspace. */
async function runHarness(
  options: ScenarioOptions,
  gateway: Gateway,
  engine: Engine,
  gatewayUrl: string,
): Promise<{ readonly ends: readonly ProcessEnd[]; readonly folders: readonly string[] }> {
  const { scenario, folder } = options
  const runs = scenario.runs.map((run) => ({ run, harness: options.harness(run) }))
  for (const { harness } of runs) await harness.prepare((message) => options.progress?.(message))
  const sandbox = await (options.sandbox ?? new ProcessSandbox()).create({
    executionId: SESSION,
    task: writeTask(scenario, folder),
    executionFolder: folder,
    limits: { memoryBytes: 0, fileBytes: 0, processes: 0 },
    gatewayUrl,
    readOnlyFolders: runs.flatMap(({ harness }) => harness.readOnlyFolders),
  })
  try {
    const endpoint = open(options, gateway)
    options.onOpen?.({ gateway, executionId: SESSION, engine })
    const baseUrl = endpoint.baseUrl.replace(gateway.url, sandbox.gatewayUrl)
    const ends: ProcessEnd[] = []
    for (const [index, { run, harness }] of runs.entries()) {
      options.progress?.(`run ${index + 1} of ${runs.length}: ${harness.name} ${harness.version}`)
      const launch = {
        sandbox,
        instruction: run.instruction,
        endpoint: {
          baseUrl,
          apiKey: endpoint.apiKey,
          model: MODEL_NAME,
          contextWindow: scenario.contextWindow,
          maxOutputTokens: scenario.maxOutputTokens,
        },
        timeoutMs: scenario.timeoutSeconds * 1000,
        logFolder: join(folder, `run-${index + 1}`),
      }
      ends.push(await harness.launch(launch, options.stop ?? new AbortController().signal))
    }
    await gateway.closeExecution(SESSION)
    await options.inspect?.(sandbox)
    const { workspace, home } = sandbox
    const installed = runs.flatMap(({ harness }) => harness.readOnlyFolders)
    return { ends, folders: [dirname(workspace), dirname(home), workspace, home, ...installed] }
  } finally {
    await sandbox.destroy()
  }
}

function open({ scenario, profile }: ScenarioOptions, gateway: Gateway): { baseUrl: string; apiKey: string } {
  const endpoint = gateway.openExecution({
    executionId: SESSION,
    profile,
    sampling: { temperature: 1, topP: 1, topK: 0, seed: 0, maxTokens: scenario.maxOutputTokens },
    maxCalls: 0,
  })
  gateway.setRoutes([{ executionId: SESSION, engineId: ENGINE, routeEpoch: 0 }])
  return endpoint
}

function writeTask(scenario: Scenario, folder: string): Task {
  const task = join(folder, 'task')
  mkdirSync(join(task, 'environment'), { recursive: true })
  for (const [path, content] of Object.entries(scenario.files)) {
    const file = join(task, 'environment', path)
    mkdirSync(dirname(file), { recursive: true })
    writeFileSync(file, content)
  }
  const timeoutMs = scenario.timeoutSeconds * 1000
  return {
    name: scenario.name,
    folder: task,
    instruction: scenario.runs[0]?.instruction ?? '',
    agentTimeoutMs: timeoutMs,
    verifierTimeoutMs: timeoutMs,
  }
}

/** So that `gyre tree` finds the session. */
function putRows(store: Store, outcome: 'running' | 'finished'): void {
  const group = groupId('session')
  const row: ExecutionRow = {
    executionId: SESSION,
    groupId: group,
    member: 0,
    attempt: 0,
    state: outcome === 'running' ? 'running' : 'scored',
    outcome: outcome === 'running' ? undefined : 'finished',
    reward: undefined,
    parts: {},
    errorCode: undefined,
    errorMessage: undefined,
    startedAtMs: undefined,
    endedAtMs: undefined,
  }
  const query = queryId('session')
  store.putGroup(
    {
      groupId: group,
      queryId: query,
      taskName: 'session',
      dispatchVersion: 0,
      burst: 0,
      state: 'evaluation',
      consumedStep: undefined,
    },
    [row],
  )
}
