import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { AssistantItem } from '../core/items.ts'
import { trainBpe } from './bpe-trainer.ts'
import { CHAT_SPECIAL_TOKENS, CHAT_TEMPLATE, tokenizerFiles } from './chat-template.ts'
import type { ChatCodec, OutputEvent } from './codec.ts'
import { createChatCodec } from './hf-codec.ts'

const SAMPLE = '{"name": "bash", "arguments": {"command": "ls"}}\n<tool_call>\nsome text, and thinking about it\n'
const MARKUP = new Set(['<tool_call>', '</tool_call>', '<think>', '</think>'])

/** One codec knows the markers as tokens; the other has to find them in the text. */
function codecWith(specialTokens: typeof CHAT_SPECIAL_TOKENS, template = CHAT_TEMPLATE): ChatCodec {
  const files = tokenizerFiles(trainBpe([SAMPLE, SAMPLE], { vocabSize: 320, specialTokens }), 1024)
  return createChatCodec({
    tokenizerJson: files['tokenizer.json'],
    tokenizerConfigJson: files['tokenizer_config.json'],
    chatTemplate: template,
  })
}
const byId = codecWith(CHAT_SPECIAL_TOKENS)
const byText = codecWith(CHAT_SPECIAL_TOKENS.filter((token) => !MARKUP.has(token.content)))
const CODECS = [
  ['by id', byId],
  ['by text', byText],
] as const

/** Ids of a text in which markers are tokens where the vocabulary has them. */
function sampled(codec: ChatCodec, text: string): number[] {
  return text.split(/(<\/?(?:tool_call|think|tool_response)>|<\|im_(?:start|end)\|>)/).flatMap((part) => {
    const id = Array.from({ length: 24 }, (_, i) => codec.vocabSize - 1 - i).find((at) => codec.decode([at]) === part)
    if (id !== undefined) return [id]
    const [, ...ids] = codec.encodeBlock([{ kind: 'user', text: part }], 'start')
    const head = [...codec.encodeBlock([{ kind: 'user', text: '' }], 'start')]
    return ids.slice(head.length - 3, -2)
  })
}

function parsed(codec: ChatCodec, ids: readonly number[], cuts: readonly number[] = []): OutputEvent[] {
  const parser = codec.outputParser([])
  const edges = [0, ...[...cuts].sort((a, b) => a - b), ids.length]
  const events = edges.slice(1).flatMap((end, i) => parser.push(ids.slice(edges[i], end)))
  return joined([...events, ...parser.finish()])
}

function joined(events: readonly OutputEvent[]): OutputEvent[] {
  const out: OutputEvent[] = []
  for (const event of events) {
    const last = out.at(-1)
    if (event.kind !== 'tool-call' && last !== undefined && last.kind === event.kind) {
      out[out.length - 1] = { kind: event.kind, text: last.text + event.text }
    } else out.push(event)
  }
  return out
}

const CALL = '<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}\n</tool_call>'
const EVENT = { kind: 'tool-call', index: 0, name: 'bash', argumentsText: '{"command":  "ls"}' }
const text = (t: string): OutputEvent => ({ kind: 'text', text: t })

test.each(CODECS)('reads thinking, text and calls, markers known %s', (_, codec) => {
  const read = (t: string): OutputEvent[] => parsed(codec, sampled(codec, t))
  expect(read(`<think>\nhm\n</think>\n\nHello\n${CALL}\n${CALL}<|im_end|>`)).toEqual([
    { kind: 'thinking', text: 'hm' },
    text('Hello'),
    EVENT,
    { ...EVENT, index: 1 },
  ])
  expect(read(CALL)).toEqual([EVENT])
  expect(read(`${CALL}\n\n`)).toEqual([EVENT])
  expect(read(`${CALL}\nDone`)).toEqual([EVENT, text('\nDone')])
  expect(read('Hello\n<|im_end|>')).toEqual([text('Hello\n')])
  expect(read('<|im_end|>')).toEqual([])
  expect(read('<think>\ncut\n')).toEqual([{ kind: 'thinking', text: 'cut\n' }])
})

test.each(CODECS)('what is no complete call is text to the letter, markers known %s', (_, codec) => {
  const read = (t: string): OutputEvent[] => parsed(codec, sampled(codec, t))
  for (const broken of [
    'Hi\n<tool_call>\n{"name": "bash", "arguments": {"command": "l',
    'Hi\n<tool_call>\n{"name": "bash"}\n</tool_call>',
    'Hi\n<tool_call>\n{"name": 1, "arguments": {}}\n</tool_call>',
    'Hi\n<tool_call>\n{"name": "bash", "arguments": []}\n</tool_call> bye',
    'Hi\n<tool_call>\n{"name": "bash", "arguments": {}}',
    'a </tool_call> b </think> c',
    '<tool_call><think></think>\n',
  ]) {
    expect(read(broken)).toEqual([text(broken)])
  }
  expect(read(`<tool_call>\n{"na${CALL}`)).toEqual([text('<tool_call>\n{"na'), EVENT])
})

test('text appears as soon as it cannot be part of a marker', () => {
  const parser = byText.outputParser([])
  expect(joined(parser.push(sampled(byText, 'abc <tool')))).toEqual([text('abc ')])
  expect(joined(parser.push(sampled(byText, 'box')))).toEqual([text('<toolbox')])
  const other = byId.outputParser([])
  expect(joined(other.push(sampled(byId, 'abc <tool')))).toEqual([text('abc <tool')])
})

test('a character is held back until its bytes are complete', () => {
  const ids = sampled(byId, '👍')
  expect(ids).toHaveLength(4)
  const parser = byId.outputParser([])
  expect(ids.map((id) => parser.push([id]))).toEqual([[], [], [], [text('👍')]])
  parser.push(ids.slice(0, 2))
  expect(parser.finish()).toEqual([text('\uFFFD')])
})

test('a marker spelled in ordinary tokens is text when the vocabulary has it as one token', () => {
  const ids = sampled(byId, '<tool_cal').concat(sampled(byId, 'l>x'))
  expect(parsed(byId, ids)).toEqual([text('<tool_call>x')])
})

test('a prompt that opens the thinking starts the parser inside it', () => {
  const template = CHAT_TEMPLATE.replace(
    /(if add_generation_prompt %\}\n {4}\{\{- )'[^']*'/,
    "$1'<|im_start|>assistant\\n<think>\\n'",
  )
  const codec = codecWith(CHAT_SPECIAL_TOKENS, template)
  expect(parsed(codec, sampled(codec, 'hm\n</think>\n\nHi'))).toEqual([{ kind: 'thinking', text: 'hm' }, text('Hi')])
})

const PARTS = ['<tool_call>', '</tool_call>', '<think>', '</think>', '\n', ' ', 'x', '👍', '{', '}', '<|im_end|>', CALL]
test.each(CODECS)('any chunking of any ids gives the same events, markers known %s', (_, codec) => {
  const markup = fc.string({ unit: fc.constantFrom(...PARTS), maxLength: 12 }).map((t) => sampled(codec, t))
  const noise = fc.array(fc.nat(codec.vocabSize - 1), { maxLength: 20 })
  fc.assert(
    fc.property(fc.oneof(markup, noise), fc.array(fc.nat(1000)), (ids, raw) => {
      const cuts = raw.map((at) => at % (ids.length + 1))
      expect(parsed(codec, ids, cuts)).toEqual(parsed(codec, ids))
    }),
  )
})

test('what the template writes is read back exactly', () => {
  const words = fc.string({ unit: fc.constantFrom('a', ' ', '\n', '<tool_call>', '</think>', '"', 'é') })
  const args = fc.dictionary(words, words).map((value) => JSON.stringify(value, null, 2))
  const toolCalls = fc.array(fc.record({ id: fc.constant(''), name: words, argumentsText: args }), { maxLength: 3 })
  fc.assert(
    fc.property(words, words, toolCalls, (thinking, said, calls) => {
      const turn: AssistantItem = { kind: 'assistant', thinking, text: said, toolCalls: calls }
      const expected = [
        ...(thinking === '' ? [] : [{ kind: 'thinking', text: thinking }]),
        ...(said === '' ? [] : [text(said)]),
        ...calls.map(({ name, argumentsText }, index) => ({ kind: 'tool-call', index, name, argumentsText })),
      ]
      expect(parsed(byId, [...byId.encodeTurn(turn)])).toEqual(expected)
    }),
  )
})
