/** @file Demonstrations in the words of the harness at hand, and a tokenizer that suits them. */
import { trailDemonstration } from '../../adapters/tasks/trail/demonstrations.ts'
import { trailTasks } from '../../adapters/tasks/trail/trail.ts'
import type { Item } from '../../core/items.ts'
import { hashSeed, type Rng, seededRng } from '../../core/rng.ts'
import { type SplitPattern, trainBpe } from '../../tokens/bpe-trainer.ts'
import { CHAT_SPECIAL_TOKENS, type TokenizerFiles, tokenizerFiles } from '../../tokens/chat-template.ts'
import { createChatCodec } from '../../tokens/hf-codec.ts'
import { type Calibration, userItemOf } from './calibrate.ts'

export interface ColdStartOptions {
  readonly seed: number
  readonly count: number
  readonly minStops: number
  readonly maxStops: number
  /** Probability to go on at a stop that names another. */
  readonly goOn: number
  readonly fillerLines: number
  readonly talks: boolean
}

/** Whole conversations: header, instruction, turns. Their tasks are of a split of their own. */
export function demonstrations(calibration: Calibration, options: ColdStartOptions): readonly (readonly Item[])[] {
  const { seed, count, goOn, talks } = options
  const rng = seededRng(hashSeed('cold-start', seed))
  return trailTasks({ ...options, split: 'demonstrations', count }).map((task) => [
    ...calibration.header.map((item) => withOtherWorkspace(item, calibration.workspace, rng)),
    userItemOf(calibration, task.instruction),
    ...trailDemonstration(task, { seed, goOn, manners: calibration.manners, talks }),
  ])
}

/** Every execution has its own workspace path: a policy must not learn one by heart. */
function withOtherWorkspace(item: Item, workspace: string, rng: Rng): Item {
  if (item.kind !== 'system' || workspace === '' || workspace === '/workspace') return item
  const other = workspace.replace(/[^/]*\d[^/]*|[^/]{12,}/g, (segment) => sameShape(segment, rng))
  return { ...item, text: item.text.replaceAll(workspace, other) }
}

function sameShape(text: string, rng: Rng): string {
  const from = (alphabet: string): string => alphabet[rng.below(alphabet.length)] ?? ''
  return text
    .replace(/[0-9]/g, () => from('0123456789'))
    .replace(/[a-z]/g, () => from('abcdefghijklmnopqrstuvwxyz'))
    .replace(/[A-Z]/g, () => from('ABCDEFGHIJKLMNOPQRSTUVWXYZ'))
}

/** How often the constant header counts in the tokenizer's corpus: enough to merge its words, too little to crowd out the tasks. */
const HEADER_REPEATS = 4

/** Trains the tokenizer of a new policy on conversations as its chat template renders them. */
export function policyTokenizer(
  conversations: readonly (readonly Item[])[],
  options: { readonly vocabSize: number; readonly split: SplitPattern; readonly context: number },
): TokenizerFiles {
  const bytes = tokenizerFiles(trainBpe([], { vocabSize: 512, specialTokens: CHAT_SPECIAL_TOKENS }), options.context)
  const codec = createChatCodec({
    tokenizerJson: bytes['tokenizer.json'],
    tokenizerConfigJson: bytes['tokenizer_config.json'],
  })
  const corpus = conversations.map((items, i) => {
    const shown = i < HEADER_REPEATS ? items : items.filter((item) => item.kind !== 'tools' && item.kind !== 'system')
    return codec.decode(codec.encodeConversation(shown))
  })
  const tokenizer = trainBpe(corpus, {
    vocabSize: options.vocabSize,
    specialTokens: CHAT_SPECIAL_TOKENS,
    splitPattern: options.split,
  })
  return tokenizerFiles(tokenizer, options.context)
}
