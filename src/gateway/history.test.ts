import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { byteCodec } from '../../test/support/byte-codec.ts'
import { GyreError } from '../core/errors.ts'
import type { Item } from '../core/items.ts'
import { PathTree } from '../trajectory/path-tree.ts'
import { anthropic } from '../wire/anthropic.ts'
import type { Dialect } from '../wire/dialect.ts'
import { gemini } from '../wire/gemini.ts'
import { openAiChat } from '../wire/openai-chat.ts'
import { parseRequest } from '../wire/request.ts'
import { BlockEncoder } from './block-encoder.ts'
import { parseJson } from './body.ts'
import { conversationOf } from './conversation.ts'
import type { Conversation } from './conversation.ts'
import { BodyHistory } from './history.ts'
import { planPrompt } from './prompt.ts'

type Element = Record<string, unknown>

/** How a dialect writes what a session says. */
interface Writer {
  readonly dialect: Dialect
  readonly user: (text: string, marked: boolean) => Element
  readonly turn: (n: number) => readonly Element[]
  readonly result: (n: number) => Element
  readonly around: (tools: number, maxTokens: number) => Element
}

const args = (n: number): Element => ({ n, path: 'a"b\\c\u00e9' })
const schema = { type: 'object', properties: { n: { type: 'integer' } } }

const WRITERS: readonly Writer[] = [
  {
    dialect: openAiChat,
    user: (content) => ({ role: 'user', content }),
    turn: (n) => [
      {
        role: 'assistant',
        content: `turn ${n}`,
        tool_calls: [
          { id: `call_${n}`, type: 'function', function: { name: 'bash', arguments: JSON.stringify(args(n)) } },
        ],
      },
    ],
    result: (n) => ({ role: 'tool', tool_call_id: `call_${n}`, content: `result ${n} ]}"` }),
    around: (tools, max_tokens) => ({
      model: 'm',
      max_tokens,
      tools: Array.from({ length: tools }, (_, i) => ({
        type: 'function',
        function: { name: `t${i}`, parameters: schema },
      })),
    }),
  },
  {
    dialect: anthropic,
    user: (text, marked) => ({
      role: 'user',
      content: [{ type: 'text', text, ...(marked ? { cache_control: { type: 'ephemeral' } } : {}) }],
    }),
    turn: (n) => [
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: `hm ${n}`, signature: 's' },
          { type: 'text', text: `turn ${n}` },
          { type: 'tool_use', id: `call_${n}`, name: 'bash', input: args(n) },
        ],
      },
    ],
    result: (n) => ({
      role: 'user',
      content: [
        n % 2 === 0
          ? { type: 'tool_result', tool_use_id: `call_${n}`, content: [{ type: 'tool_reference', tool_name: 't0' }] }
          : { type: 'tool_result', tool_use_id: `call_${n}`, content: `result ${n}` },
      ],
    }),
    around: (tools, max_tokens) => ({
      system: [{ type: 'text', text: 'You are an agent.' }],
      tools: Array.from({ length: tools + 1 }, (_, i) => ({
        name: `t${i}`,
        description: `tool ${tools}`,
        input_schema: schema,
        defer_loading: i === 0,
      })),
      max_tokens,
    }),
  },
  {
    dialect: gemini,
    user: (text) => ({ role: 'user', parts: [{ text }] }),
    turn: (n) => [
      {
        role: 'model',
        parts: [{ text: `turn ${n}` }, { functionCall: { id: `call_${n}`, name: 'bash', args: args(n) } }],
      },
    ],
    result: (n) => ({
      role: 'user',
      parts: [{ functionResponse: { id: `call_${n}`, name: 'bash', response: { output: `result ${n}` } } }],
    }),
    around: (tools, maxOutputTokens) => ({
      systemInstruction: { parts: [{ text: 'You are an agent.' }] },
      tools: [
        {
          functionDeclarations: Array.from({ length: tools }, (_, i) => ({
            name: `t${i}`,
            parametersJsonSchema: schema,
          })),
        },
      ],
      generationConfig: { maxOutputTokens },
    }),
  },
]

/** A turn in several elements, as the Responses dialect has them: assistant elements in a row are one turn. */
const splitting: Writer = {
  ...(WRITERS[0] as Writer),
  dialect: { ...openAiChat, splitsTurns: true },
  turn: (n) => [
    { role: 'assistant', content: `turn ${n}` },
    { role: 'assistant', content: '' },
    ...(WRITERS[0] as Writer).turn(n),
  ],
}

const steps = fc.array(
  fc.record({
    kind: fc.constantFrom(
      'go-on',
      'go-on',
      'go-on',
      'user',
      'retry',
      'rewind',
      'edit',
      'compact',
      'other',
      'end-in-turn',
    ),
    at: fc.nat(30),
    tools: fc.constantFrom(2, 2, 2, 3),
    maxTokens: fc.constantFrom(100, 100, 200),
    layout: fc.constantFrom('first', 'first', 'first', 'last', 'blanks', 'twice', 'escaped', 'cut'),
    marked: fc.boolean(),
  }),
  { minLength: 1, maxLength: 14 },
)

interface Step {
  readonly kind: string
  readonly at: number
  readonly tools: number
  readonly maxTokens: number
  readonly layout: string
  readonly marked: boolean
}

function nextElements(writer: Writer, before: readonly Element[], step: Step, n: number): readonly Element[] {
  switch (step.kind) {
    case 'go-on':
      return [...before, ...writer.turn(n), writer.result(n)]
    case 'user':
      return [...before, ...writer.turn(n), writer.user(`and ${step.at}?`, step.marked)]
    case 'rewind':
      return before.slice(0, 1 + (step.at % before.length))
    case 'edit':
      return before.map((element, i) => (i === step.at % before.length ? writer.user(`edit ${n}`, false) : element))
    case 'compact':
      return [writer.user(`summary ${n}`, step.marked), ...before.slice(-2)]
    case 'other':
      return [writer.user(`sub-agent ${step.at % 2}`, step.marked)]
    case 'end-in-turn':
      return [...before, ...writer.turn(n)]
    default:
      return before
  }
}

function bytesOf({ dialect, around }: Writer, elements: readonly Element[], step: Step): Buffer {
  const rest = around(step.tools, step.maxTokens)
  const field = dialect.conversation
  const first = { [field]: elements, ...rest }
  const texts: Record<string, () => string> = {
    first: () => JSON.stringify(first),
    last: () => JSON.stringify({ ...rest, [field]: elements }),
    blanks: () => JSON.stringify(first, null, 1),
    twice: () => `{"${field}":[{"role":"user"}],${JSON.stringify(first).slice(1)}`,
    escaped: () => JSON.stringify(first).replace(field, `\\u00${field.charCodeAt(0).toString(16)}${field.slice(1)}`),
    cut: () => JSON.stringify(first).slice(0, -(1 + (step.at % 20))),
  }
  return Buffer.from(texts[step.layout]?.() ?? '')
}

function attempt(read: () => Conversation): Conversation | string {
  try {
    return read()
  } catch (error) {
    if (!(error instanceof GyreError)) throw error
    return `${error.code} ${error.message}`
  }
}

const itemsOf = (conversation: Conversation): Item[] => conversation.facts.map((_, i) => conversation.itemAt(i))
const lastSaid = ({ signals }: Conversation): ReadonlySet<string> => {
  const asked = signals.slice(signals.findLastIndex((item) => item.kind === 'assistant') + 1)
  return new Set(asked.flatMap((item) => (item.kind === 'user' ? [item.text] : [])))
}
const firstUser = ({ signals }: Conversation): unknown => signals.find((item) => item.kind === 'user')
const systemOf = ({ signals }: Conversation): string =>
  [...new Set(signals.flatMap((item) => (item.kind === 'system' ? [item.text] : [])))].sort().join('\n')

describe.each([
  ...WRITERS.map((writer) => [writer.dialect.name, writer] as const),
  ['split turns', splitting] as const,
])('bodies of %s', (_, writer) => {
  test('read as they would be alone, whatever came before', () => {
    fc.assert(
      fc.property(steps, (session) => {
        const history = new BodyHistory()
        const [tree, plain] = [new PathTree(), new PathTree()]
        const encoder = new BlockEncoder(byteCodec)
        let elements: readonly Element[] = [writer.user('task', true)]
        session.forEach((step, n) => {
          elements = nextElements(writer, elements, step, n)
          const body = bytesOf(writer, elements, step)
          const target = writer.dialect.name === 'gemini' ? { model: 'm', stream: true } : {}
          const read = attempt(() => history.read(body, writer.dialect, target))
          const alone = attempt(() => conversationOf(parseRequest(writer.dialect, parseJson(body), target)))
          if (typeof read === 'string' || typeof alone === 'string') {
            expect(read).toEqual(alone)
            return
          }
          expect(read.envelope).toEqual(alone.envelope)
          expect(read.facts).toEqual(alone.facts)
          expect(read.contextHash).toBe(alone.contextHash)
          expect(systemOf(read)).toBe(systemOf(alone))
          expect(firstUser(read)).toEqual(firstUser(alone))
          expect(lastSaid(read)).toEqual(lastSaid(alone))
          // The tree that knows fingerprints finds what one that compares everything finds.
          const facts = alone.facts.map((fact) => (fact.kind === 'assistant' ? { ...fact, fingerprint: '' } : fact))
          const prompt = planPrompt(tree, encoder, read)
          expect(prompt).toEqual(planPrompt(plain, encoder, { ...alone, facts }))
          expect(itemsOf(read)).toEqual(itemsOf(alone))
          for (const grown of [tree, plain]) commit(grown, prompt, n)
        })
      }),
      { numRuns: 150 },
    )
  })
})

/** Adds the prompt and an answer that `writer.turn(n + 1)` echoes. */
function commit(tree: PathTree, prompt: ReturnType<typeof planPrompt>, n: number): void {
  let { parent } = prompt
  for (const { digests, items, tokenIds } of prompt.blocks) {
    const content = { kind: 'block', digests, endsInTurn: items.at(-1)?.kind === 'assistant' } as const
    parent = tree.findBlock(parent, tokenIds, digests) ?? tree.add(parent, tokenIds, content)
  }
  const toolCalls = [{ id: `call_${n + 1}`, name: 'bash', argumentsText: JSON.stringify(args(n + 1)) }]
  const turn = { kind: 'assistant', thinking: '', text: `turn ${n + 1}`, toolCalls } as const
  tree.add(parent, byteCodec.encodeTurn(turn), { kind: 'turn', turn, isOpen: false, status: 'committed' })
}

test('a longer history costs only its new elements', () => {
  const history = new BodyHistory()
  let parsed = 0
  const counting: Dialect = {
    ...openAiChat,
    parseElement: (...element) => {
      parsed++
      return openAiChat.parseElement(...element)
    },
  }
  const messages: Element[] = [{ role: 'user', content: 'task' }]
  for (let n = 0; n < 50; n++) {
    history.read(Buffer.from(JSON.stringify({ model: 'm', messages, max_tokens: 9 })), counting, {})
    messages.push({ role: 'assistant', content: `turn ${n}` }, { role: 'user', content: `next ${n}` })
  }
  expect(parsed).toBe(1 + 49 * 2)
})

test('two histories in turns are both remembered', () => {
  const history = new BodyHistory()
  let parsed = 0
  const counting: Dialect = {
    ...openAiChat,
    parseElement: (...element) => {
      parsed++
      return openAiChat.parseElement(...element)
    },
  }
  const threads = ['one', 'two'].map((text): Element[] => [
    { role: 'system', content: 'same' },
    { role: 'user', content: text },
  ])
  for (let n = 0; n < 20; n++) {
    for (const messages of threads) {
      history.read(Buffer.from(JSON.stringify({ model: 'm', messages })), counting, {})
      messages.push({ role: 'assistant', content: `turn ${n}` }, { role: 'user', content: `next ${n}` })
    }
  }
  // The second thread starts from the head it shares with the first.
  expect(parsed).toBeLessThanOrEqual(2 * (2 + 19 * 2) + 2)
})
