/**
 * @file Where a history branches: every way a request may go on from earlier ones, times what the harness made of the
 * turns it sends back.
 *
 * Shapes name turns by the letter of what was said: `A B` is B after A, `[A] [B]` two branches, `~` a turn that the
 * harness claims and the policy never sampled in that context.
 */
import { describe, expect, test } from 'vitest'
import { call, encode, newTree, result, system, toolCall, tools, turn, user } from '../../test/support/trees.ts'
import type { CallOptions } from '../../test/support/trees.ts'
import type { AssistantItem, Item } from '../core/items.ts'
import { seededRng } from '../core/rng.ts'
import { admit } from './admission.ts'
import type { LeafRole, NodeId } from './node.ts'
import { ROOT, type ExecutionTree } from './tree.ts'

type Echo = (said: AssistantItem) => AssistantItem

const WRITTEN = '{"description" :  "run it",\n "timeout": 5000.0,  "command": "echo caf\\u00e9 \\/tmp" }'
const GO = [tools('bash'), system('Agent.'), user('Go.')]
const HELPER = [tools('read'), system('Helper.')]

const ECHOES: Readonly<Record<string, Echo>> = {
  verbatim: (said) => said,
  normalized: (said) => ({
    ...said,
    thinking: '',
    text: `${said.text}\n`,
    toolCalls: said.toolCalls.map((made) => ({
      ...made,
      argumentsText: '{"command":"echo café /tmp","description":"run it","timeout":5000}',
    })),
  }),
  rewritten: (said) => ({ ...said, text: `${said.text}, rewritten` }),
}

/** Plays requests against a tree; turns are named by letters. */
class Session {
  readonly tree: ExecutionTree = newTree()
  readonly #echo: Echo
  readonly #said = new Map<string, AssistantItem>()
  readonly #callIds = new Map<string, ReturnType<typeof call>['callId']>()
  readonly #letters = new Map<NodeId, string>()

  constructor(echo: Echo) {
    this.#echo = echo
  }

  /** The policy says `letter` to these items. */
  ask(letter: string, items: readonly Item[], options: CallOptions = {}): void {
    const reply = turn(`say ${letter}`, [toolCall(`call_${letter}`, 'bash', WRITTEN)], `think ${letter}`)
    const said = options.finishReason === 'length' ? turn(`say ${letter} and`) : reply
    // What was sampled is never what encoding the turn would give.
    const tokens = [...encode(said).slice(1), 7000 + (letter.codePointAt(0) ?? 0)]
    const record = call(this.tree, items, said, { ...options, id: letter, tokens })
    const leaf = record.nodes.at(-1)?.id ?? -1
    this.#said.set(letter, said)
    this.#callIds.set(letter, record.callId)
    this.#letters.set(leaf, letter)
    const end = this.tree.pathTokenIds(leaf).subarray(-tokens.length)
    if (end.join() !== tokens.join()) throw new Error(`the path of ${letter} does not end in what was sampled`)
  }

  /** The turn as the harness sends it back. */
  echo(letter: string): AssistantItem {
    const said = this.#said.get(letter)
    if (said === undefined) throw new Error(`${letter} was not said`)
    return this.#echo(said)
  }

  /** The turn sent back with the result of its call. */
  round(letter: string): readonly Item[] {
    return [this.echo(letter), result(`call_${letter}`, `result of ${letter}`)]
  }

  discard(letter: string): void {
    const callId = this.#callIds.get(letter)
    if (callId !== undefined) this.tree.markOrphan(callId)
  }

  shape(at: NodeId = ROOT): string {
    const below = this.tree
      .childrenOf(at)
      .map((child) => this.shape(child))
      .filter((text) => text !== '')
    const rest = below.length > 1 ? below.map((text) => `[${text}]`).join(' ') : below.join('')
    const node = this.tree.node(at)
    const isClaimed = node?.provenance === 'harness' && node.items[0]?.kind === 'assistant'
    const own = this.#letters.get(at) ?? (isClaimed ? '~' : '')
    return own === '' || rest === '' ? own + rest : `${own} ${rest}`
  }

  /** `A picked main` for every leaf, and the turns that are trained: `A` with every token once, else `A*0.5`. */
  admitted(): { readonly leaves: readonly string[]; readonly trained: string } {
    const { trajectories, leaves } = admit(this.tree, { jMax: Infinity, rng: seededRng(1) })
    const times = new Map<string, number>()
    for (const { nodes, lossMask } of trajectories) {
      let at = 0
      for (const { id, tokenIds } of nodes) {
        const letter = this.#letters.get(id)
        const loss = lossMask.subarray(at, at + tokenIds.length).reduce((sum, bit) => sum + bit, 0)
        const share = letter === undefined && loss === 0 ? 0 : loss / tokenIds.length
        if (share > 0) times.set(letter ?? '?', (times.get(letter ?? '?') ?? 0) + share)
        at += tokenIds.length
      }
    }
    const rows = leaves.map(({ leaf, fate, role }) => `${this.#letters.get(leaf) ?? '?'} ${fate} ${role}`)
    return {
      leaves: rows.sort(),
      trained: [...times]
        .map(([letter, n]) => (n === 1 ? letter : `${letter}*${n}`))
        .sort()
        .join(''),
    }
  }
}

interface Expected {
  readonly shape: string
  readonly leaves: readonly string[]
  readonly trained: string
}
interface Routing {
  readonly what: string
  readonly play: (session: Session) => void
  /** With an echo that is verbatim or normalized. */
  readonly kept: Expected
  /** With an echo that was rewritten. */
  readonly rewritten: Expected
}

const as = (role: LeafRole): CallOptions => ({ role })
const picked = (...letters: string[]): string[] => letters.map((letter) => `${letter} picked main`)

const ROUTINGS: readonly Routing[] = [
  {
    what: 'the conversation goes on',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO, ...s.round('A')])
      s.ask('C', [...GO, ...s.round('A'), ...s.round('B')])
    },
    kept: { shape: 'A B C', leaves: picked('C'), trained: 'ABC' },
    rewritten: { shape: '[A] [~ [B] [~ C]]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'a retry whose first answer was lost',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', GO)
      s.discard('A')
      s.ask('C', [...GO, ...s.round('B')])
    },
    kept: { shape: '[A] [B C]', leaves: ['A orphan main', ...picked('C')], trained: 'BC' },
    rewritten: { shape: '[[A] [B]] [~ C]', leaves: ['A orphan main', ...picked('B', 'C')], trained: 'BC' },
  },
  {
    what: 'an answer that was taken for lost and is used after all',
    play: (s) => {
      s.ask('A', GO)
      s.discard('A')
      s.ask('B', [...GO, ...s.round('A')])
    },
    kept: { shape: 'A B', leaves: picked('B'), trained: 'AB' },
    rewritten: { shape: '[A] [~ B]', leaves: ['A orphan main', ...picked('B')], trained: 'B' },
  },
  {
    what: 'the same question twice, both answers used',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', GO)
      s.ask('C', [...GO, ...s.round('A')])
      s.ask('D', [...GO, ...s.round('B')])
    },
    kept: { shape: '[A C] [B D]', leaves: picked('C', 'D'), trained: 'ABCD' },
    rewritten: { shape: '[[A] [B]] [~ C] [~ D]', leaves: picked('A', 'B', 'C', 'D'), trained: 'ABCD' },
  },
  {
    what: 'a client that hung up, and asks again',
    play: (s) => {
      s.ask('A', GO, { status: 'aborted' })
      s.ask('B', GO)
      s.ask('C', [...GO, ...s.round('B')])
    },
    kept: { shape: '[A] [B C]', leaves: ['A aborted main', ...picked('C')], trained: 'BC' },
    rewritten: { shape: '[[A] [B]] [~ C]', leaves: ['A aborted main', ...picked('B', 'C')], trained: 'BC' },
  },
  {
    what: 'an answer of bad JSON that was dropped and asked for again',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', GO)
      s.ask('C', [...GO, ...s.round('B'), user('And?')])
    },
    kept: { shape: '[A] [B C]', leaves: picked('A', 'C'), trained: 'ABC' },
    rewritten: { shape: '[[A] [B]] [~ C]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'a rewind to an earlier turn',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO, ...s.round('A')])
      s.ask('C', [...GO, s.echo('A'), user('Rather do this.')])
    },
    kept: { shape: 'A [B] [C]', leaves: picked('B', 'C'), trained: 'ABC' },
    rewritten: { shape: '[A] [~ [B] [C]]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'a user text edited under the turns that followed it',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO.slice(0, 2), user('Go now.'), ...s.round('A')])
    },
    kept: { shape: '[A] [~ B]', leaves: picked('A', 'B'), trained: 'AB' },
    rewritten: { shape: '[A] [~ B]', leaves: picked('A', 'B'), trained: 'AB' },
  },
  {
    what: 'a tool result edited',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO, ...s.round('A')])
      s.ask('C', [...GO, s.echo('A'), result('call_A', 'cleared'), ...s.round('B')])
    },
    kept: { shape: 'A [B] [~ C]', leaves: picked('B', 'C'), trained: 'ABC' },
    rewritten: { shape: '[A] [~ [B] [~ C]]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'a turn dropped from the middle',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO, ...s.round('A')])
      s.ask('C', [...GO, ...s.round('B')])
    },
    kept: { shape: '[A B] [~ C]', leaves: picked('B', 'C'), trained: 'ABC' },
    rewritten: { shape: '[A] [~ B] [~ C]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'sub-agents in parallel that share their head',
    play: (s) => {
      s.ask('A', GO)
      s.ask('S', [...HELPER, user('Look here.')], as('sub-agent'))
      s.ask('T', [...HELPER, user('Look there.')], as('sub-agent'))
      s.ask('U', [...HELPER, user('Look here.'), ...s.round('S')], as('sub-agent'))
      s.ask('B', [...GO, ...s.round('A')])
    },
    kept: {
      shape: '[A B] [[S U] [T]]',
      leaves: [...picked('B'), 'T picked sub-agent', 'U picked sub-agent'],
      trained: 'ABSTU',
    },
    rewritten: {
      shape: '[[A] [~ B]] [[[S] [~ U]] [T]]',
      leaves: [...picked('A', 'B'), 'S picked sub-agent', 'T picked sub-agent', 'U picked sub-agent'],
      trained: 'ABSTU',
    },
  },
  {
    what: 'a sub-agent that inherits the history',
    play: (s) => {
      s.ask('A', GO)
      s.ask('S', [...GO, ...s.round('A'), user('You are a fork.')], as('sub-agent'))
      s.ask('B', [...GO, ...s.round('A')])
    },
    kept: { shape: 'A [S] [B]', leaves: [...picked('B'), 'S picked sub-agent'], trained: 'ABS' },
    rewritten: { shape: '[A] [~ [S] [B]]', leaves: [...picked('A', 'B'), 'S picked sub-agent'], trained: 'ABS' },
  },
  {
    what: 'a compaction whose new root re-uses the last round and its id',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO, ...s.round('A')])
      s.ask('M', [...GO, ...s.round('A'), user('Summarize.')], as('main-summary'))
      s.ask('C', [...GO.slice(0, 2), user('Continued: say M'), ...s.round('B')])
      s.ask('D', [...GO.slice(0, 2), user('Continued: say M'), ...s.round('B'), ...s.round('C')])
    },
    kept: {
      shape: '[A [B] [M]] [~ C D]',
      leaves: ['B picked main', 'D picked main', 'M picked main-summary'],
      trained: 'ABCDM',
    },
    rewritten: {
      shape: '[[A] [~ [B] [M]]] [~ [C] [~ D]]',
      leaves: [...picked('A', 'B', 'C', 'D'), 'M picked main-summary'],
      trained: 'ABCDM',
    },
  },
  {
    what: 'a resume that sends the same history',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO, ...s.round('A')])
      s.ask('C', [...GO, ...s.round('A'), s.echo('B'), user('Next.')])
    },
    kept: { shape: 'A B C', leaves: picked('C'), trained: 'ABC' },
    rewritten: { shape: '[A] [~ [B] [~ C]]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'a resume that renders its first message anew',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO, ...s.round('A')])
      s.ask('C', [...GO.slice(0, 2), user('Go. (Later.)'), ...s.round('A'), s.echo('B'), user('Next.')])
    },
    kept: { shape: '[A B] [~ ~ C]', leaves: picked('B', 'C'), trained: 'ABC' },
    rewritten: { shape: '[[A] [~ B]] [~ ~ C]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'a nudge in the user message before an answer without words',
    play: (s) => {
      s.ask('A', GO)
      s.ask('B', [...GO, user('Your previous response had no visible output.')])
      s.ask('C', [...GO, user('Your previous response had no visible output.'), ...s.round('B')])
    },
    kept: { shape: '[A] [B C]', leaves: picked('A', 'C'), trained: 'ABC' },
    rewritten: { shape: '[A] [[B] [~ C]]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'a stop by length, and a nudge to continue',
    play: (s) => {
      s.ask('A', GO, { finishReason: 'length' })
      s.ask('B', [...GO, s.echo('A'), user('Resume directly.')])
      s.ask('C', [...GO, s.echo('A'), user('Resume directly.'), ...s.round('B')])
    },
    kept: { shape: 'A B C', leaves: picked('C'), trained: 'ABC' },
    rewritten: { shape: '[A] [~ [B] [~ C]]', leaves: picked('A', 'B', 'C'), trained: 'ABC' },
  },
  {
    what: 'a title beside the task',
    play: (s) => {
      s.ask('T', [system('You are a title generator.'), user('Go.')], as('side'))
      s.ask('A', GO)
      s.ask('B', [...GO, ...s.round('A')])
    },
    kept: { shape: '[T] [A B]', leaves: [...picked('B'), 'T side side'], trained: 'AB' },
    rewritten: { shape: '[T] [[A] [~ B]]', leaves: [...picked('A', 'B'), 'T side side'], trained: 'AB' },
  },
]

const cases = ROUTINGS.flatMap((routing) =>
  Object.entries(ECHOES).map(([how, echo]) => [routing.what, how, routing, echo] as const),
)

describe('branching', () => {
  test.each(cases)('%s, echoed %s', (_, how, routing, echo) => {
    const session = new Session(echo)
    routing.play(session)
    const expected = how === 'rewritten' ? routing.rewritten : routing.kept
    expect({ shape: session.shape(), ...session.admitted() }).toEqual(expected)
  })

  test('the turns after a stop by length stand behind an open turn', () => {
    const session = new Session((said) => said)
    session.ask('A', GO, { finishReason: 'length' })
    expect(session.tree.contextOf(session.tree.leaves()[0] ?? -1)).toBe('turn-open')
  })
})
