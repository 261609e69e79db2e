/** @file Random sessions of one execution: calls that go on, ask again, start over, retry and rewrite. */
import fc from 'fast-check'
import type { AssistantItem, Item } from '../../src/core/items.ts'
import type { CallRecord, CallStatus, LeafRole } from '../../src/trajectory/node.ts'
import type { ExecutionTree } from '../../src/trajectory/tree.ts'
import { call, encode, newTree, result, system, toolCall, tools, turn, user } from './trees.ts'

export interface SessionStep {
  readonly from: number
  readonly kind: 'go-on' | 'again' | 'start-over' | 'tool-results' | 'rewrite'
  readonly word: number
  readonly role: LeafRole
  readonly status: CallStatus
  /** Sampled tokens beyond the turn's own text, so that re-encoding could never give them. */
  readonly extra: readonly number[]
  readonly missingLogprob: boolean
  readonly version: number
}

const ROLES: readonly LeafRole[] = ['main', 'main', 'main-summary', 'sub-agent', 'sub-agent-summary', 'side']
const STATUSES: readonly CallStatus[] = ['committed', 'committed', 'committed', 'orphan', 'aborted']

export const sessionSteps: fc.Arbitrary<readonly SessionStep[]> = fc.array(
  fc.record({
    from: fc.nat(20),
    kind: fc.constantFrom('go-on', 'go-on', 'again', 'start-over', 'tool-results', 'tool-results', 'rewrite'),
    word: fc.nat(2),
    role: fc.constantFrom(...ROLES),
    status: fc.constantFrom(...STATUSES),
    extra: fc.array(fc.integer({ min: 5000, max: 5009 }), { minLength: 1, maxLength: 3 }),
    missingLogprob: fc.boolean(),
    version: fc.nat(3),
  }),
  { minLength: 1, maxLength: 14 },
)

/** One item with the ids that stand for it on a path, generation prompt included for turns. */
interface Spoken {
  readonly item: Item
  readonly ids: readonly number[]
}

export interface Session {
  readonly tree: ExecutionTree
  readonly records: readonly CallRecord[]
  /** What the policy had read when it began, and had said when it ended, by call. */
  readonly contexts: readonly (readonly number[])[]
}

const harness = (item: Item): Spoken => ({ item, ids: encode(item) })
const opening = (word: number): Spoken[] =>
  [tools('bash'), system('You are an agent.'), user(`task ${word}`)].map(harness)

/** What a harness may do to a turn without changing it. */
function echoed(reply: AssistantItem): AssistantItem {
  const toolCalls = reply.toolCalls.map((c) => ({ ...c, argumentsText: JSON.stringify(JSON.parse(c.argumentsText)) }))
  return { ...reply, text: `${reply.text}\n`, thinking: '', toolCalls }
}

function requestOf(step: SessionStep, request: readonly Spoken[], after: readonly Spoken[]): readonly Spoken[] {
  const said = after.at(-1)?.item
  const calls = said?.kind === 'assistant' ? said.toolCalls : []
  const requests: Readonly<Record<SessionStep['kind'], readonly Spoken[]>> = {
    'go-on': [...after, harness(user(`next ${step.word}`))],
    'tool-results': [...after, ...calls.map((c) => harness(result(c.id, `output ${step.word}`, c.name)))],
    rewrite: [...request, harness(turn(`rewritten ${step.word}`)), harness(user('and now?'))],
    again: request,
    'start-over': opening(step.word),
  }
  return requests[step.kind]
}

export function runSession(steps: readonly SessionStep[], tree: ExecutionTree = newTree()): Session {
  const requests: (readonly Spoken[])[] = []
  const histories: (readonly Spoken[])[] = []
  const records: CallRecord[] = []
  const contexts: (readonly number[])[] = []
  for (const [n, step] of steps.entries()) {
    const from = n === 0 ? -1 : step.from % n
    const request = from < 0 ? opening(step.word) : requestOf(step, requests[from] ?? [], histories[from] ?? [])
    const args = `{ "n":${n}.0, "path" : "a\\/b" }`
    const reply = turn(`reply ${n}`, [toolCall(`call_${n}`, 'bash', args), toolCall(`call_${n}b`, 'bash', args)], 'hm')
    const tokens = [...encode(reply).slice(1), ...step.extra]
    const logprobs = tokens.map((t, i) => (step.missingLogprob && i === 2 ? NaN : -0.01 * (t % 50)))
    const { role, status, version } = step
    const items = request.map((spoken) => spoken.item)
    records.push(call(tree, items, reply, { role, status, version, tokens, logprobs }))
    const said: Spoken = { item: echoed(reply), ids: [1, ...tokens] }
    requests.push(request)
    histories.push([...request, said])
    contexts.push([...request, said].flatMap((spoken) => [...spoken.ids]))
  }
  return { tree, records, contexts }
}
