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

/** Lower-case texts, each joined only when a signal asks for it: a history may be long. */
class CallTexts {
  readonly #items: readonly Item[]
  readonly #texts = new Map<string, string>()

  constructor(items: readonly Item[]) {
    this.#items = items
  }

  get system(): string {
    return this.#once('system', () => this.#items.flatMap((item) => (item.kind === 'system' ? [item.text] : [])))
  }

  get firstUser(): string {
    return this.#once('firstUser', () => [this.#items.find((item) => item.kind === 'user')?.text ?? ''])
  }

  get lastUser(): string {
    return this.#once('lastUser', () => {
      const asked = this.#items.slice(this.#items.findLastIndex((item) => item.kind === 'assistant') + 1)
      return asked.flatMap((item) => (item.kind === 'user' ? [item.text] : []))
    })
  }

  #once(name: string, texts: () => readonly string[]): string {
    const held = this.#texts.get(name)
    if (held !== undefined) return held
    const joined = texts().join('\n').toLowerCase()
    this.#texts.set(name, joined)
    return joined
  }
}

function headerText(facts: CallFacts, name: string): string | undefined {
  const value = facts.headers[name]
  return typeof value === 'string' || value === undefined ? value : value.join(', ')
}

function headerShows(signal: CallSignal, facts: CallFacts): boolean {
  if (signal.header === undefined) return true
  const value = headerText(facts, signal.header)
  const wanted = (signal.headerIncludes ?? '').replaceAll(' ', '')
  return value !== undefined && value.replaceAll(' ', '').includes(wanted)
}

function shows(signal: CallSignal, facts: CallFacts, texts: CallTexts): boolean {
  if (signal.tools !== undefined && (signal.tools === 'some') !== facts.hasTools) return false
  if (!headerShows(signal, facts)) return false
  const { systemIncludes = [], firstUserIncludes = [], firstUserLacks = [], lastUserIncludes = [] } = signal
  return (
    systemIncludes.every((part) => texts.system.includes(part.toLowerCase())) &&
    firstUserIncludes.every((part) => texts.firstUser.includes(part.toLowerCase())) &&
    !firstUserLacks.some((part) => texts.firstUser.includes(part.toLowerCase())) &&
    lastUserIncludes.every((part) => texts.lastUser.includes(part.toLowerCase()))
  )
}

/** Thread ('' when the harness names none) and role of one model call. A summary without tools is no side call. */
export function classifyCall(
  profile: HarnessProfile,
  facts: CallFacts,
): { readonly thread: string; readonly role: LeafRole } {
  const texts = new CallTexts(facts.items)
  const any = (signals: readonly CallSignal[]): boolean => signals.some((signal) => shows(signal, facts, texts))
  const header = profile.threadHeaders.find((name) => headerText(facts, name) !== undefined)
  const thread = header === undefined ? '' : (headerText(facts, header) ?? '')
  const summary = any(profile.summary)
  if (!summary && any(profile.side)) return { thread, role: 'side' }
  const speaker = any(profile.subAgent) ? 'sub-agent' : 'main'
  return { thread, role: summary ? `${speaker}-summary` : speaker }
}
