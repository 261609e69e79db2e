/** @file Echoes as they stand on the wire: shapes that say the same, and shapes that do not, in each dialect. */
import { describe, expect, test } from 'vitest'
import { call, newTree, toolCall, turn } from '../../test/support/trees.ts'
import type { AssistantItem, Json } from '../core/items.ts'
import { anthropic } from '../wire/anthropic.ts'
import type { Dialect } from '../wire/dialect.ts'
import { gemini } from '../wire/gemini.ts'
import { openAiChat } from '../wire/openai-chat.ts'
import { parseRequest } from '../wire/request.ts'

const WRITTEN =
  '{"description" :  "run it",\n "timeout": 5000.0,  "command": "echo caf\\u00e9 \\/tmp", "n": 12345678901234567890}'
const READ = { command: 'echo café /tmp', description: 'run it', timeout: 5000, n: 12345678901234567000 }

const called = turn('', [toolCall('call_1', 'bash', WRITTEN)], 'Let me see.')
const spoken = turn('Done.', [], 'Let me see.')

const use = (input: Json): Json => ({ type: 'tool_use', id: 'call_1', name: 'bash', input })
const chatCall = (args: string): Json => [
  { id: 'call_1', type: 'function', function: { name: 'bash', arguments: args } },
]
const claude = (content: Json): Json => ({ role: 'assistant', content })
const chat = (fields: Record<string, Json>): Json => ({ role: 'assistant', ...fields })
const model = (...parts: Json[]): Json => ({ role: 'model', parts })

type Row = readonly [harness: string, what: string, dialect: Dialect, served: AssistantItem, echo: Json]

const SAME: readonly Row[] = [
  ['claude-code', 'content as text', anthropic, spoken, claude('Done.')],
  [
    'claude-code',
    'content as blocks, marked for the cache',
    anthropic,
    spoken,
    claude([{ type: 'text', text: 'Done.', cache_control: { type: 'ephemeral' } }]),
  ],
  [
    'claude-code',
    'signed thinking',
    anthropic,
    spoken,
    claude([
      { type: 'thinking', thinking: 'Let me see.', signature: 's' },
      { type: 'text', text: 'Done.' },
    ]),
  ],
  [
    'claude-code',
    'a signature without thinking',
    anthropic,
    spoken,
    claude([
      { type: 'thinking', thinking: '', signature: 's' },
      { type: 'text', text: 'Done.' },
    ]),
  ],
  ['claude-code', 'arguments as an object', anthropic, called, claude([use(READ)])],
  ['claude-code', 'no words in front of a call', anthropic, called, claude([{ type: 'text', text: '' }, use(READ)])],
  ['opencode', 'content ""', openAiChat, called, chat({ content: '', tool_calls: chatCall(JSON.stringify(READ)) })],
  [
    'qwen-code',
    'content null',
    openAiChat,
    called,
    chat({ content: null, tool_calls: chatCall(JSON.stringify(READ)) }),
  ],
  ['pi', 'no content', openAiChat, called, chat({ tool_calls: chatCall(WRITTEN) })],
  ['qwen-code', 'content as parts', openAiChat, spoken, chat({ content: [{ type: 'text', text: 'Done.' }] })],
  [
    'qwen-code',
    'content in two parts',
    openAiChat,
    spoken,
    chat({
      content: [
        { type: 'text', text: 'Do' },
        { type: 'text', text: 'ne.' },
      ],
    }),
  ],
  ['pi', 'reasoning_content', openAiChat, spoken, chat({ content: 'Done.', reasoning_content: 'Let me see.' })],
  ['opencode', 'empty reasoning_content', openAiChat, spoken, chat({ content: 'Done.', reasoning_content: '' })],
  [
    'gemini-cli',
    'no id, a thought signature',
    gemini,
    called,
    model({ functionCall: { name: 'bash', args: READ }, thoughtSignature: 'skip_thought_signature_validator' }),
  ],
  ['gemini-cli', 'another id', gemini, called, model({ functionCall: { id: 'bash_17_0', name: 'bash', args: READ } })],
  ['gemini-cli', 'our id', gemini, called, model({ functionCall: { id: 'call_1', name: 'bash', args: READ } })],
  ['gemini-cli', 'thoughts dropped', gemini, spoken, model({ text: 'Done.' })],
]

const BRANCH: readonly Row[] = [
  ['claude-code', 'interrupted', anthropic, called, claude([{ type: 'text', text: '[Tool use interrupted]' }])],
  ['claude-code', 'another command', anthropic, called, claude([use({ ...READ, command: 'ls' })])],
  ['opencode', 'partial text', openAiChat, spoken, chat({ content: 'Do' })],
  ['pi', 'another big integer', openAiChat, called, chat({ tool_calls: chatCall(WRITTEN.replace('890}', '891}')) })],
  [
    'gemini-cli',
    'a call less',
    gemini,
    { ...called, toolCalls: [...called.toolCalls, toolCall('call_2', 'bash', '{}')] },
    model({ functionCall: { name: 'bash', args: READ } }),
  ],
]

function body(dialect: Dialect, ...turns: readonly Json[]): Json {
  const head = { model: 'm', max_tokens: 9 }
  const asked = (text: string): Json =>
    dialect === gemini ? { role: 'user', parts: [{ text }] } : { role: 'user', content: text }
  const messages = [asked('Go.'), ...turns.flatMap((echo) => [echo, asked('And?')])]
  return { ...(dialect === gemini ? {} : head), [dialect.conversation]: messages }
}

/** The kinds of the nodes that hold the request's history: `policy` where the served turn was found. */
function provenance([, , dialect, served, echo]: Row): string | undefined {
  const tree = newTree()
  call(tree, parseRequest(dialect, body(dialect)).items, served)
  const { parent, matchedItems } = tree.match(parseRequest(dialect, body(dialect, echo)).items)
  expect(matchedItems).toBeGreaterThan(0)
  return tree.node(parent)?.provenance
}

describe('the same node', () => {
  test.each(SAME)('%s: %s', (...row) => {
    expect(provenance(row)).toBe('policy')
  })
})

describe('a branch', () => {
  test.each(BRANCH)('%s: %s', (...row) => {
    expect(provenance(row)).toBe('harness')
  })
})
