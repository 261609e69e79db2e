/** @file `gyre gateway`: the gateway alone in front of an engine, recording every call to a store. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { openSqliteStore } from '../adapters/store/sqlite/sqlite-store.ts'
import { loadProfile } from '../config/profile.ts'
import { absolutePath } from '../config/resolve.ts'
import { errorText, GyreError } from '../core/errors.ts'
import { createGateway } from '../gateway/gateway.ts'
import { monotonicClock } from '../host/clock.ts'
import type { Store } from '../ports/store.ts'
import type { HarnessProfile } from '../trajectory/profile.ts'
import { extendedProfile, harnessProfile, HARNESS_PROFILE_NAMES } from '../trajectory/profiles.ts'
import { Cleanup } from './compose/cleanup.ts'
import { startGatewayAdmin } from './compose/gateway-admin.ts'
import { chooseEngine } from './compose/gateway-engine.ts'
import { GatewayExecutions } from './compose/gateway-executions.ts'
import type { OpenedExecution } from './compose/gateway-executions.ts'
import { secretOf } from './compose/gateway-secrets.ts'
import { stopOnSignals } from './compose/stop-signals.ts'
import { keptTokenizer } from './compose/tokenizer-folder.ts'
import type { CliContext } from './context.ts'
import { pasteBlock } from './paste-block.ts'
import { LEDGER } from './run-folder.ts'

export interface GatewayOptions {
  readonly engine: string
  readonly out: string
  readonly url?: string
  readonly tokenizer?: string
  readonly host: string
  readonly port?: string
  readonly adminPort?: string
  readonly tokenFile?: string
  readonly profile: string
  readonly model: string
  readonly engineModel?: string
  readonly engineKeyEnv?: string
  readonly acceptProcessedLogprobs?: true
  readonly context?: string
  readonly temperature: string
  readonly json?: true
}

/** Names of files below the folder of the store. */
const KEY_SECRET = 'gateway.secret'
const ADMIN_TOKEN = 'admin.token'
const TOKENIZER = 'policy'

/** Kept in the store: a harness that runs on goes on asking where it asked before. */
const GATEWAY_PORT = 'gateway port'
const ADMIN_PORT = 'gateway administration port'

/** Serves until SIGINT or SIGTERM. @throws GyreError E_CONFIG_*, E_ENGINE_*, E_STORE_*, E_GATEWAY_PORT. */
export async function serveGateway(options: GatewayOptions, context: CliContext): Promise<void> {
  const cleanup = new Cleanup((text) => context.warn(text))
  try {
    await serve(options, context, cleanup)
  } finally {
    await cleanup.close()
  }
}

async function serve(options: GatewayOptions, context: CliContext, cleanup: Cleanup): Promise<void> {
  const path = (text: string): string => absolutePath(text, context.cwd, context.home)
  const out = path(options.out)
  const stop = stopOnSignals((signal) => context.warn(`${signal}: closing; once more ends it at once`))
  cleanup.add('signal handlers', () => stop.off())
  const profile = profileOf(options.profile, context)
  mkdirSync(out, { recursive: true })
  const store = openStore(out)
  cleanup.add('store', () => store.close())
  const given = options.tokenizer === undefined ? undefined : path(options.tokenizer)
  const codec = keptTokenizer(join(out, TOKENIZER), given, options.engine.startsWith('scripted:'))
  const chosen = await chooseEngine({
    engine: options.engine.replace(/^scripted:(.+)$/, (_, file: string) => `scripted:${path(file)}`),
    url: options.url,
    apiKey: keyFromEnv(options, context),
    model: options.engineModel,
    context: options.context === undefined ? undefined : Number(options.context),
    acceptProcessedLogprobs: options.acceptProcessedLogprobs === true,
    codec,
    profile,
  })
  cleanup.add('engine', async () => chosen.close())
  context.warn(chosen.found)
  const { maxContext } = chosen
  const sampling = { temperature: Number(options.temperature), topP: 1, topK: 0, seed: 0, maxTokens: maxContext }
  const executions = new GatewayExecutions({
    store,
    secret: secretOf(join(out, KEY_SECRET)),
    engineId: chosen.engine.id,
    defaults: { profile, sampling },
    now: () => Math.round(monotonicClock.now()),
  })
  const gateway = await createGateway({
    codec,
    sink: executions.sink,
    now: () => Math.round(monotonicClock.now()),
    model: options.model,
    maxContext,
    host: options.host,
    port: portFor(store, GATEWAY_PORT, options.port),
    onFailure: (error, id) => context.warn(`${id ?? 'gateway'}: ${errorText(error)}`),
  })
  cleanup.add('gateway', async () => gateway.close())
  gateway.setEngine(chosen.engine)
  const reopened = executions.start(gateway)
  cleanup.add('executions', async () => executions.suspend())
  const opened = reopened.at(-1) ?? executions.open(isNew(store, 'default') ? { id: 'default' } : {})
  const tokenFile = options.tokenFile === undefined ? join(out, ADMIN_TOKEN) : path(options.tokenFile)
  const token = secretOf(tokenFile)
  // Whoever may ask the policy need not be allowed to administer: it stays on this machine.
  const admin = await startGatewayAdmin({
    executions,
    token,
    host: '127.0.0.1',
    port: portFor(store, ADMIN_PORT, options.adminPort),
  })
  cleanup.add('administration', async () => admin.close())
  store.setMeta(GATEWAY_PORT, String(gateway.port))
  store.setMeta(ADMIN_PORT, new URL(admin.url).port)
  const facts = { out, adminUrl: admin.url, tokenFile, model: options.model, maxContext }
  announce({ ...facts, opened, reopened }, options, context)
  await new Promise<void>((resolve) => {
    if (stop.signal.aborted) resolve()
    else stop.signal.addEventListener('abort', () => resolve())
  })
}

interface Announcement {
  readonly out: string
  readonly adminUrl: string
  readonly tokenFile: string
  readonly model: string
  readonly maxContext: number
  readonly opened: OpenedExecution
  readonly reopened: readonly OpenedExecution[]
}

function announce(facts: Announcement, options: GatewayOptions, context: CliContext): void {
  const { out, adminUrl, tokenFile, model, maxContext, opened, reopened } = facts
  const { executionId, baseUrl, apiKey } = opened
  if (options.json) {
    const ids = reopened.map((one) => one.executionId)
    context.print(
      JSON.stringify({ executionId, baseUrl, apiKey, model, maxContext, adminUrl, tokenFile, out, reopened: ids }),
    )
    return
  }
  const again = reopened.length === 0 ? '' : `open again: ${reopened.map((one) => one.executionId).join(', ')}\n`
  context.print(`${again}${pasteBlock({ baseUrl, apiKey, model, contextWindow: maxContext })}

execution ${executionId} is recorded to ${out}; look at it with: gyre tree ${executionId} --run ${out}
further executions, each with a key of its own:
  curl -X POST -H "Authorization: Bearer $(cat ${tokenFile})" ${adminUrl}/executions
Ctrl-C closes; the same command goes on where this one ends`)
}

function openStore(out: string): Store {
  const store = openSqliteStore(join(out, LEDGER))
  if (store.groups().every((group) => group.groupId === 'gateway')) return store
  store.close()
  throw new GyreError(`${out} holds a training run: give the gateway a folder of its own`, {
    boundary: 'config',
    code: 'E_CONFIG_RUN_EXISTS',
  })
}

/** The one that was asked for, else the one of last time, else any free one. */
function portFor(store: Store, key: string, option: string | undefined): number {
  return Number(option ?? store.getMeta(key) ?? '0')
}

function isNew(store: Store, id: string): boolean {
  return store.executions().every((row) => row.executionId !== id)
}

/** A shipped profile by its name, else a file. */
function profileOf(text: string, { cwd }: CliContext): HarnessProfile {
  if (HARNESS_PROFILE_NAMES.includes(text)) return harnessProfile(text)
  return extendedProfile(loadProfile(text, cwd), 'generic')
}

function keyFromEnv({ engineKeyEnv }: GatewayOptions, { env }: CliContext): string | undefined {
  if (engineKeyEnv === undefined) return undefined
  const key = env[engineKeyEnv]
  if (key !== undefined && key !== '') return key
  throw new GyreError(`--engine-key-env names ${engineKeyEnv}, which is not set: export it`, {
    boundary: 'config',
    code: 'E_CONFIG_SECRET',
  })
}
