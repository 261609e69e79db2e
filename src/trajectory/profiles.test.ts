import { describe, expect, test } from 'vitest'
import { result, system, tools, turn, user } from '../../test/support/trees.ts'
import type { Item } from '../core/items.ts'
import type { LeafRole } from './node.ts'
import { type CallFacts, classifyCall } from './classify.ts'
import { HARNESS_PROFILE_NAMES, harnessProfile } from './profiles.ts'

const SUMMARY =
  'CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a detailed summary of the conversation so far, paying'
const agent: readonly Item[] = [tools('Bash'), system('You are an agent.'), user('Fix it.')]
const midRun: readonly Item[] = [...agent, turn('ok'), result('c', 'out')]

type Row = readonly [string, string, readonly Item[], CallFacts['headers'], LeafRole, string]
const rows: readonly Row[] = [
  ['claude-code', 'main', agent, { 'x-claude-code-session-id': 's' }, 'main', ''],
  ['claude-code', 'sub-agent', agent, { 'x-claude-code-agent-id': 'a8dd8c42' }, 'sub-agent', 'a8dd8c42'],
  ['claude-code', 'compaction mid-run', [...midRun, user(SUMMARY)], {}, 'main-summary', ''],
  [
    'claude-code',
    'a second compaction, with a note after it',
    [...midRun, user(SUMMARY), system('Note: big.txt was read')],
    {},
    'main-summary',
    '',
  ],
  [
    'claude-code',
    'summary of a sub-agent',
    [...midRun, user(SUMMARY)],
    { 'x-claude-code-agent-id': 'b' },
    'sub-agent-summary',
    'b',
  ],
  [
    'claude-code',
    'a summary request that lies in history',
    [...agent, user(SUMMARY), turn('s'), user('go')],
    {},
    'main',
    '',
  ],
  ['claude-code', 'title', [system('Generate a concise, sentence-case title'), user('Fix it.')], {}, 'side', ''],
  ['claude-code', 'quota', [user('quota')], {}, 'side', ''],
  ['pi', 'main', agent, { 'user-agent': 'OpenAI/JS 6.26.0' }, 'main', ''],
  [
    'pi',
    'compaction',
    [system('You are a context summarization assistant. Read'), user('...')],
    {},
    'main-summary',
    '',
  ],
  ['codex', 'main', agent, { 'thread-id': 't1' }, 'main', 't1'],
  ['codex', 'sub-agent', agent, { 'thread-id': 't2', 'x-openai-subagent': 'collab_spawn' }, 'sub-agent', 't2'],
  ['codex', 'compaction', agent, { 'x-codex-turn-metadata': '{"request_kind": "compaction"}' }, 'main-summary', ''],
  [
    'opencode',
    'title',
    [system('You are a title generator. You output'), user('x')],
    { 'x-session-id': 'ses_1' },
    'side',
    'ses_1',
  ],
  ['opencode', 'sub-agent', agent, { 'x-session-id': 'ses_2', 'x-parent-session-id': 'ses_1' }, 'sub-agent', 'ses_2'],
  ['opencode', 'compaction', [system('You are a context summarization agent'), user('x')], {}, 'main-summary', ''],
  [
    'qwen-code',
    'sub-agent',
    [tools('a'), system('You are a general-purpose subagent working for a parent agent.'), user('x')],
    {},
    'sub-agent',
    '',
  ],
  [
    'qwen-code',
    'memory',
    [tools('a'), system('You are now acting as the managed memory extraction subagent'), user('x')],
    {},
    'side',
    '',
  ],
  [
    'qwen-code',
    'compaction',
    [system('You are the component that summarizes a conversation'), user('x')],
    {},
    'main-summary',
    '',
  ],
  [
    'gemini-cli',
    'main',
    [tools('a'), system('call complete_task'), user('<session_context>Today</session_context>')],
    {},
    'main',
    '',
  ],
  ['gemini-cli', 'sub-agent', [tools('a'), system('You must call complete_task'), user('look')], {}, 'sub-agent', ''],
  ['a harness of mine', 'chat without tools', [system('Answer.'), user('2 + 2?')], {}, 'main', ''],
  ['a harness of mine', 'title', [system('You are a title generator'), user('x')], {}, 'side', ''],
]

describe('classifyCall', () => {
  test.each(rows)('%s: %s', (name, _, items, headers, role, thread) => {
    const hasTools = items.some((item) => item.kind === 'tools')
    expect(classifyCall(harnessProfile(name), { items, headers, hasTools })).toEqual({ role, thread })
  })

  test('an unknown harness gets the generic profile', () => {
    expect(harnessProfile('a harness of mine').name).toBe('generic')
    expect(HARNESS_PROFILE_NAMES).toEqual(expect.arrayContaining(['generic', 'pi', 'claude-code']))
  })
})
