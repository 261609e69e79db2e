import { describe, expect, test } from 'vitest'
import { result, system, tools, turn, user } from '../../test/support/trees.ts'
import type { Item } from '../core/items.ts'
import type { LeafRole } from './node.ts'
import { type CallFacts, classifyCall } from './classify.ts'
import { HARNESS_PROFILE_NAMES, extendedProfile, harnessProfile } from './profiles.ts'
import { withoutVolatileLines } from './volatile.ts'

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
  [
    'claude-code',
    'compaction appended to a tool result, a system reminder behind it',
    [...midRun, user(SUMMARY), system('Some tools are deferred.')],
    {},
    'main-summary',
    '',
  ],
  [
    'claude-code',
    'compaction up to a point',
    [
      ...midRun,
      user(
        'CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\nYour task is to create a detailed summary of this conversation.',
      ),
    ],
    {},
    'main-summary',
    '',
  ],
  [
    'claude-code',
    'a task that asks for a summary',
    [...agent, turn('ok'), user('Write a detailed summary of the code.')],
    {},
    'main',
    '',
  ],
  [
    'claude-code',
    'memory extraction, a fork with all tools',
    [...midRun, user('You are now acting as the memory extraction subagent. Analyze')],
    {},
    'side',
    '',
  ],
  [
    'claude-code',
    'sub-agent by its prompt',
    [tools('Bash'), system("You are an agent for Claude Code, Anthropic's"), user('x')],
    {},
    'sub-agent',
    '',
  ],
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
    'codex',
    'compaction without the header',
    [system('x'), user('fix'), turn('ok'), user('You are performing a CONTEXT CHECKPOINT COMPACTION. Create')],
    { 'thread-id': 't1' },
    'main-summary',
    't1',
  ],
  [
    'codex',
    'compaction of a sub-agent',
    agent,
    { 'x-codex-turn-metadata': '{"request_kind":"compaction"}', 'x-openai-subagent': 'collab_spawn' },
    'sub-agent-summary',
    '',
  ],
  ['codex', 'memory', agent, { 'x-openai-memgen-request': 'true' }, 'side', ''],
  ['codex', 'memory consolidation', agent, { 'x-openai-subagent': 'memory_consolidation' }, 'side', ''],
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
  ['qwen-code', 'main', [tools('a'), system('You are Qwen Code, an interactive CLI agent'), user('x')], {}, 'main', ''],
  [
    'qwen-code',
    'a sub-agent of the user',
    [
      tools('a'),
      system(
        'You test.\n - When the task is complete, return the final result as a normal model response (not a tool call) and stop.',
      ),
      user('x'),
    ],
    {},
    'sub-agent',
    '',
  ],
  [
    'qwen-code',
    'title',
    [tools('respond'), system('Generate a concise, sentence-case title (3-7 words)'), user('x')],
    {},
    'side',
    '',
  ],
  [
    'qwen-code',
    'compaction in the middle of a run',
    [
      tools('a'),
      system('You are Qwen Code, a non-interactive CLI agent'),
      user('x'),
      user('You are the component that summarizes a conversation when its context window is about to overflow.'),
    ],
    {},
    'main-summary',
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
  ['gemini-cli', 'routing', [system('You are a specialized Task Routing AI.'), user('x')], {}, 'side', ''],
  [
    'gemini-cli',
    'compression',
    [system('responsible for distilling chat history into a structured XML <state_snapshot>.'), user('x')],
    {},
    'main-summary',
    '',
  ],
  ['pi', 'a main agent without tools', [system('You are an expert coding assistant'), user('x')], {}, 'main', ''],
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

describe('a profile of the user', () => {
  test('has what it gives and the rest of its base', () => {
    const own = extendedProfile({ name: 'mine', extends: 'claude-code', threadHeaders: ['x-thread'] })
    expect(own).toEqual({ ...harnessProfile('claude-code'), name: 'mine', threadHeaders: ['x-thread'] })
    expect(extendedProfile({ name: 'mine' }).silenceLimitMs).toBe(harnessProfile('generic').silenceLimitMs)
    expect(extendedProfile({ name: 'mine' }, 'pi').summary).toBe(harnessProfile('pi').summary)
  })
})

describe('withoutVolatileLines', () => {
  const profile = extendedProfile({ name: 'mine', volatileSystemLines: ['Now: '] })

  test('takes the lines out of system text, wherever it stands, and nothing else', () => {
    const items = [
      system('Now: 12:00\nYou are an agent.\nNow: 12:01'),
      user('Now: 12:02'),
      system('Now: 12:03'),
      turn('Now: ok'),
    ]
    expect(withoutVolatileLines(profile, items)).toEqual([
      system('You are an agent.'),
      user('Now: 12:02'),
      turn('Now: ok'),
    ])
  })

  test('gives back the same items when there is nothing to take', () => {
    const items = [system('The time is Now: or never.'), user('x')]
    expect(withoutVolatileLines(profile, items)).toEqual(items)
    expect(withoutVolatileLines(harnessProfile('pi'), items)).toBe(items)
  })
})
