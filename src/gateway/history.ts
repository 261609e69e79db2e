/**
 * @file Reads the bodies of one execution so that each costs what is new in it.
 *
 * A body that begins with the bytes of an earlier one shares all it says up to the last common element of the
 * conversation: those elements are known by their facts, and only the rest is parsed, validated and digested. Whatever
 * does not fit this is read as a whole, which is also where every error comes from.
 */
import { invariant } from '../core/errors.ts'
import { pagedMemory } from '../core/pages.ts'
import type { Item } from '../core/items.ts'
import type { ItemFacts } from '../trajectory/path-tree.ts'
import type { Dialect, Envelope, RequestTarget } from '../wire/dialect.ts'
import { headItems, joinedTurns, parseRequest } from '../wire/request.ts'
import { conversationStart, elementsFrom, endsBody } from '../wire/scan.ts'
import type { Span } from '../wire/scan.ts'
import { parseJson } from './body.ts'
import { contextHashOf, conversationOf, factsOf, lastExchange } from './conversation.ts'
import type { Conversation } from './conversation.ts'

/** How much of earlier bodies an execution remembers, beside the latest one. [bodies], [bytes] */
const KEPT_BODIES = 4
const KEPT_BYTES = 8 * 1024 * 1024

/** Elements of a body that are read together: usually one, or all those that make one turn. */
interface Unit extends Span {
  /** Index of its first element. */
  readonly element: number
  readonly facts: readonly ItemFacts[]
  /** Its system items: they say who speaks. */
  readonly system: readonly Item[]
}

/** What is known of a body once it was read. */
interface KnownBody {
  readonly body: Buffer
  readonly dialect: Dialect
  readonly target: RequestTarget
  readonly clean: CleanItems
  /** Offsets of the bytes after the conversation's opening bracket, and of its closing one. */
  readonly open: number
  readonly close: number
  readonly envelope: Envelope
  readonly head: readonly Item[]
  readonly headFacts: readonly ItemFacts[]
  readonly units: readonly Unit[]
  readonly firstUser: Item | undefined
}

/** Units that were read just now, with their items. */
interface FreshUnit {
  readonly unit: Unit
  readonly items: readonly Item[]
}

/** Takes out of items what their harness put there for itself. Item by item: it may not depend on their neighbours. */
type CleanItems = (items: readonly Item[]) => readonly Item[]

export class BodyHistory {
  readonly #clean: CleanItems
  /** The latest last. */
  readonly #known: KnownBody[] = []

  constructor(clean: CleanItems = (items) => items) {
    this.#clean = clean
  }

  /** @throws GyreError E_WIRE_MALFORMED, E_WIRE_UNSUPPORTED, as reading the whole body does. */
  read(body: Buffer, dialect: Dialect, target: RequestTarget): Conversation {
    return this.#readNew(body, dialect, target) ?? this.readWhole(dialect, parseJson(body), target)
  }

  /** For a body that is not the request itself. @throws as `read`. */
  readWhole(dialect: Dialect, body: unknown, target: RequestTarget): Conversation {
    const parsed = parseRequest(dialect, body, target)
    return conversationOf({ ...parsed, items: this.#clean(parsed.items) })
  }

  forget(): void {
    this.#known.length = 0
  }

  #readNew(body: Buffer, dialect: Dialect, target: RequestTarget): Conversation | undefined {
    const from = this.#longestShared(body, dialect)
    try {
      const read = readBody({ body, dialect, target, clean: this.#clean }, from)
      if (read === undefined) return undefined
      this.#remember(read.known, from)
      return read.conversation
    } catch {
      return undefined
    }
  }

  #longestShared(body: Buffer, dialect: Dialect): Shared | undefined {
    let [best, shared]: [KnownBody | undefined, number] = [undefined, -1]
    for (const known of this.#known.toReversed()) {
      const units = known.dialect.name === dialect.name ? sharedUnits(known, body) : -1
      if (units > shared) [best, shared] = [known, units]
    }
    return best === undefined ? undefined : { known: best, units: best.units.slice(0, shared) }
  }

  /** A body that goes on from another takes its place: harnesses rewrite at most the last exchange. */
  #remember(latest: KnownBody, from: Shared | undefined): void {
    if (from !== undefined && from.units.length > 0 && from.units.length >= from.known.units.length - 2) {
      this.#known.splice(this.#known.indexOf(from.known), 1)
    }
    this.#known.push(latest)
    const bytes = (): number => this.#known.reduce((sum, { body }) => sum + body.length, 0)
    while (this.#known.length > KEPT_BODIES || (this.#known.length > 1 && bytes() > KEPT_BYTES)) this.#known.shift()
  }
}

/** How many units from the start the bodies share byte for byte; -1 when they differ before the conversation. */
function sharedUnits({ body: old, open, units }: KnownBody, body: Buffer): number {
  const isSame = (from: number, to: number): boolean =>
    to <= body.length && old.subarray(from, to).equals(body.subarray(from, to))
  if (!isSame(0, open)) return -1
  const endOf = (count: number): number => units[count - 1]?.end ?? open
  let [same, different] = [0, units.length + 1]
  // All of them first: a history that only grew is the rule.
  for (let probe = units.length; same + 1 < different; probe = (same + different) >> 1) {
    if (isSame(endOf(same), endOf(probe))) same = probe
    else different = probe
  }
  return same
}

type NewBody = Pick<KnownBody, 'body' | 'dialect' | 'target' | 'clean'>

/** What a new body takes over from a known one: its first units, and where its conversation opens. */
interface Shared {
  readonly known: KnownBody
  readonly units: readonly Unit[]
}

interface ReadBody {
  readonly conversation: Conversation
  readonly known: KnownBody
}

function readBody(given: NewBody, from: Shared | undefined): ReadBody | undefined {
  const kept = from?.units ?? []
  const span = newElements(given.body, given.dialect.conversation, from)
  if (span === undefined) return undefined
  const layout = { ...given, open: span.open, close: span.close }
  const top = topOf(layout, from?.known)
  if (from !== undefined && kept.length > 0 && !readsAlike(from.known.envelope, top.envelope)) {
    return readBody(given, undefined)
  }
  const fresh = readElements(layout, span.elements, from === undefined ? 0 : countElements(from), top.envelope)
  const units = [...kept, ...fresh.map(({ unit }) => unit)]
  const firstUser = firstUserOf(from) ?? fresh.flatMap(({ items }) => items).find(({ kind }) => kind === 'user')
  const next = { ...top, ...layout, body: keptBytes(given.body), units, firstUser }
  const conversation = converse(next, kept.length, fresh)
  return conversation === undefined ? undefined : { conversation, known: next }
}

/** The bytes come in memory that is used again, and stay for as long as the execution. */
function keptBytes(body: Buffer): Buffer {
  const kept = Buffer.from(pagedMemory(body.length))
  body.copy(kept)
  return kept
}

/** undefined when the body is written in an unusual way. */
function newElements(
  body: Buffer,
  field: string,
  from: Shared | undefined,
): { readonly open: number; readonly close: number; readonly elements: readonly Span[] } | undefined {
  const open = from?.known.open ?? conversationStart(body, field)
  if (open === undefined) return undefined
  const last = from?.units.at(-1)
  const list = elementsFrom(body, last?.end ?? open, last === undefined)
  return list === undefined || !endsBody(body, list.close + 1, field) ? undefined : { open, ...list }
}

function firstUserOf(from: Shared | undefined): Item | undefined {
  const isShared = from?.units.some(({ facts }) => facts.some(({ kind }) => kind === 'user'))
  return isShared === true ? from?.known.firstUser : undefined
}

/** Elements of the shared units. */
function countElements({ known, units }: Shared): number {
  const next = known.units[units.length]
  if (next !== undefined) return next.element
  const last = units.at(-1)
  // The last unit may hold several elements.
  return last === undefined ? 0 : last.element + unitElements(known.body, last).length
}

type Layout = NewBody & Pick<KnownBody, 'open' | 'close'>
type Top = Pick<KnownBody, 'envelope' | 'head' | 'headFacts'>

/** Everything beside the conversation; taken over when the bytes that say it are the same. */
function topOf(layout: Layout, known: KnownBody | undefined): Top {
  const { body, dialect, target, clean, open, close } = layout
  if (known !== undefined && target.model === known.target.model && target.stream === known.target.stream) {
    if (body.subarray(close).equals(known.body.subarray(known.close))) return known
  }
  const text = body.toString('utf8', 0, open) + body.toString('utf8', close)
  const envelope = dialect.parseEnvelope(JSON.parse(text), target)
  const head = clean(headItems(envelope))
  return { envelope, head, headFacts: head.map(factsOf) }
}

/** True when an element means the same under both. */
function readsAlike(a: Envelope, b: Envelope): boolean {
  if (a === b || a.deferredTools.size + b.deferredTools.size === 0) return true
  return JSON.stringify([...a.deferredTools]) === JSON.stringify([...b.deferredTools])
}

function readElements(
  { body, dialect, clean }: Layout,
  spans: readonly Span[],
  firstElement: number,
  envelope: Envelope,
): readonly FreshUnit[] {
  const units: FreshUnit[] = []
  let open: { readonly from: number; items: Item[] } | undefined
  spans.forEach((span, i) => {
    const element: unknown = JSON.parse(body.toString('utf8', span.start, span.end))
    const path = `${dialect.conversation}.${firstElement + i}`
    open ??= { from: i, items: [] }
    open.items.push(...dialect.parseElement(element, path, envelope))
    // A turn that may go on in the next element stays open.
    if (dialect.splitsTurns && open.items.at(-1)?.kind === 'assistant' && i + 1 < spans.length) return
    const items = clean(dialect.splitsTurns ? joinedTurns(open.items) : open.items)
    const start = spans[open.from]?.start ?? span.start
    units.push(freshUnit({ start, end: span.end }, firstElement + open.from, items))
    open = undefined
  })
  return units
}

function freshUnit(span: Span, element: number, items: readonly Item[]): FreshUnit {
  const system = items.filter((item) => item.kind === 'system')
  return { unit: { ...span, element, facts: items.map(factsOf), system }, items }
}

function unitElements(body: Buffer, unit: Span): readonly unknown[] {
  return JSON.parse(`[${body.toString('utf8', unit.start, unit.end)}]`) as readonly unknown[]
}

function readAgain({ body, dialect, envelope, clean }: KnownBody, unit: Unit): readonly Item[] {
  const items = unitElements(body, unit).flatMap((element, i) =>
    dialect.parseElement(element, `${dialect.conversation}.${unit.element + i}`, envelope),
  )
  return clean(dialect.splitsTurns ? joinedTurns(items) : items)
}

/** undefined when the conversation is one that the whole reader refuses. */
function converse(known: KnownBody, kept: number, fresh: readonly FreshUnit[]): Conversation | undefined {
  const { envelope, head, headFacts, units, firstUser } = known
  const facts = [...headFacts, ...units.flatMap((unit) => unit.facts)]
  const last = facts.at(-1)
  if (facts.length === headFacts.length || last === undefined || last.kind === 'assistant') return undefined
  const read = new Map(fresh.map(({ items }, i) => [kept + i, items]))
  const itemAt = itemReader(known, read)
  const told = [...head.filter((item) => item.kind === 'system'), ...units.flatMap((unit) => unit.system)]
  return {
    envelope,
    facts,
    itemAt,
    signals: [...told, ...(firstUser === undefined ? [] : [firstUser]), ...lastExchange(facts, itemAt)],
    contextHash: contextHashOf(facts),
  }
}

function itemReader(known: KnownBody, read: Map<number, readonly Item[]>): (index: number) => Item {
  return (index) => {
    let at = index - known.headFacts.length
    if (at < 0) return present(known.head[index], index)
    let unit = 0
    for (; at >= (known.units[unit]?.facts.length ?? Infinity); unit++) at -= known.units[unit]?.facts.length ?? 0
    const held = known.units[unit]
    invariant(held !== undefined, `item ${index} is in the request`)
    const items = read.get(unit) ?? readAgain(known, held)
    read.set(unit, items)
    return present(items[at], index)
  }
}

function present(item: Item | undefined, index: number): Item {
  invariant(item !== undefined, `item ${index} is in the request`)
  return item
}
