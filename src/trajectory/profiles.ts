/**
 * @file Who speaks in a model call: the main agent, a sub-agent, a summary, or something on the side.
 *
 * A profile is data: the signals a harness gives through headers and fixed texts, as observed in the
 * traffic of unmodified harnesses. An unknown harness gets the generic profile.
 */
import type { Item } from '../core/items.ts'
import type { LeafRole } from './node.ts'

/** All conditions given must hold. Texts are compared without case; every listed text must occur. */
interface CallSignal {
  /** Name in lower case of a header that must be there. */
  readonly header?: string
  /** Text that this header must hold. */
  readonly headerIncludes?: string
  readonly systemIncludes?: readonly string[]
  readonly firstUserIncludes?: readonly string[]
  readonly firstUserLacks?: readonly string[]
  /** The last item must be a user item that holds these. */
  readonly lastUserIncludes?: readonly string[]
  readonly tools?: 'none' | 'some'
}

/** Each list holds alternatives. Side signals go first, then summary; the two summary roles follow from subAgent. */
export interface HarnessProfile {
  readonly name: string
  /** Headers in lower case that name the thread, the first present one wins; none when the harness sends none. */
  readonly threadHeaders: readonly string[]
  readonly side: readonly CallSignal[]
  readonly summary: readonly CallSignal[]
  readonly subAgent: readonly CallSignal[]
}

export interface CallFacts {
  readonly items: readonly Item[]
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>
  readonly hasTools: boolean
}

const GENERIC: HarnessProfile = {
  name: 'generic',
  threadHeaders: [],
  side: [
    { tools: 'none', systemIncludes: ['title generator'] },
    { tools: 'none', systemIncludes: ['generate', 'title'] },
  ],
  summary: [
    { tools: 'none', systemIncludes: ['summarization'] },
    { tools: 'none', systemIncludes: ['summarizes a conversation'] },
    { lastUserIncludes: ['detailed summary of the conversation'] },
  ],
  subAgent: [{ systemIncludes: ['subagent working for a parent agent'] }],
}

const PROFILES: readonly HarnessProfile[] = [
  GENERIC,
  {
    name: 'pi',
    threadHeaders: [],
    side: [],
    summary: [{ tools: 'none', systemIncludes: ['You are a context summarization assistant'] }],
    subAgent: [],
  },
  {
    name: 'claude-code',
    threadHeaders: ['x-claude-code-agent-id'],
    side: [{ tools: 'none' }],
    summary: [
      {
        lastUserIncludes: [
          'CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.',
          'Your task is to create a detailed summary of the conversation so far',
        ],
      },
    ],
    subAgent: [{ header: 'x-claude-code-agent-id' }, { systemIncludes: ['You are an agent for Claude Code'] }],
  },
  {
    name: 'codex',
    threadHeaders: ['thread-id'],
    side: [],
    summary: [
      { header: 'x-codex-turn-metadata', headerIncludes: '"request_kind":"compaction"' },
      { tools: 'none', lastUserIncludes: ['You are performing a CONTEXT CHECKPOINT COMPACTION'] },
    ],
    subAgent: [{ header: 'x-openai-subagent' }, { header: 'x-codex-parent-thread-id' }],
  },
  {
    name: 'opencode',
    threadHeaders: ['x-session-id'],
    side: [{ tools: 'none', systemIncludes: ['You are a title generator'] }],
    summary: [{ tools: 'none', systemIncludes: ['You are a context summarization agent'] }],
    subAgent: [{ header: 'x-parent-session-id' }],
  },
  {
    name: 'qwen-code',
    threadHeaders: [],
    side: [{ systemIncludes: ['managed memory extraction subagent'] }],
    summary: [{ tools: 'none', systemIncludes: ['You are the component that summarizes a conversation'] }],
    subAgent: [{ systemIncludes: ['You are a general-purpose subagent working for a parent agent'] }],
  },
  {
    name: 'gemini-cli',
    threadHeaders: [],
    side: [],
    summary: [{ tools: 'none', systemIncludes: ['distilling chat history into a structured XML <state_snapshot>'] }],
    subAgent: [{ tools: 'some', systemIncludes: ['complete_task'], firstUserLacks: ['<session_context>'] }],
  },
]

/** Names of the profiles we ship. */
export const HARNESS_PROFILE_NAMES: readonly string[] = PROFILES.map((profile) => profile.name)

/** The profile of this name, else the generic one. */
export function harnessProfile(name: string): HarnessProfile {
  return PROFILES.find((profile) => profile.name === name) ?? GENERIC
}

interface CallTexts {
  readonly system: string
  readonly firstUser: string
  readonly lastUser: string
}

function textsOf(items: readonly Item[]): CallTexts {
  const system = items.flatMap((item) => (item.kind === 'system' ? [item.text] : [])).join('\n')
  const firstUser = items.find((item) => item.kind === 'user')?.text ?? ''
  const last = items.at(-1)
  return {
    system: system.toLowerCase(),
    firstUser: firstUser.toLowerCase(),
    lastUser: last?.kind === 'user' ? last.text.toLowerCase() : '',
  }
}

function headerText(facts: CallFacts, name: string): string | undefined {
  const value = facts.headers[name]
  return typeof value === 'string' || value === undefined ? value : value.join(', ')
}

function holdsAll(text: string, parts: readonly string[] | undefined): boolean {
  return (parts ?? []).every((part) => text.includes(part.toLowerCase()))
}

function shows(signal: CallSignal, facts: CallFacts, texts: CallTexts): boolean {
  if (signal.tools !== undefined && (signal.tools === 'some') !== facts.hasTools) return false
  if (signal.header !== undefined) {
    const value = headerText(facts, signal.header)
    if (value === undefined || !value.replaceAll(' ', '').includes(signal.headerIncludes ?? '')) return false
  }
  if ((signal.firstUserLacks ?? []).some((part) => texts.firstUser.includes(part.toLowerCase()))) return false
  return (
    holdsAll(texts.system, signal.systemIncludes) &&
    holdsAll(texts.firstUser, signal.firstUserIncludes) &&
    holdsAll(texts.lastUser, signal.lastUserIncludes)
  )
}

/** Thread ('' when the harness names none) and role of one model call. A summary without tools is no side call. */
export function classifyCall(
  profile: HarnessProfile,
  facts: CallFacts,
): { readonly thread: string; readonly role: LeafRole } {
  const texts = textsOf(facts.items)
  const any = (signals: readonly CallSignal[]): boolean => signals.some((signal) => shows(signal, facts, texts))
  const header = profile.threadHeaders.find((name) => headerText(facts, name) !== undefined)
  const thread = header === undefined ? '' : (headerText(facts, header) ?? '')
  const summary = any(profile.summary)
  if (!summary && any(profile.side)) return { thread, role: 'side' }
  const speaker = any(profile.subAgent) ? 'sub-agent' : 'main'
  return { thread, role: summary ? `${speaker}-summary` : speaker }
}
