/** @file Who speaks in a model call: the main agent, a sub-agent, a summary, or something on the side. */
import type { Item } from '../core/items.ts'
import type { LeafRole } from './node.ts'
import type { CallSignal, HarnessProfile } from './profile.ts'

export interface CallFacts {
  readonly items: readonly Item[]
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>
  readonly hasTools: boolean
}

interface CallTexts {
  readonly system: string
  readonly firstUser: string
  readonly lastUser: string
}

function textsOf(items: readonly Item[]): CallTexts {
  const system = items.flatMap((item) => (item.kind === 'system' ? [item.text] : [])).join('\n')
  const firstUser = items.find((item) => item.kind === 'user')?.text ?? ''
  // A harness may put a note of its own after what it asks for.
  const last = items.findLast((item) => item.kind !== 'system')
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
