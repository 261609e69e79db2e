/**
 * @file What the gateway and the trainer need of a tokenizer with its chat template:
 * encode only what is new, parse what was sampled.
 */
import type { AssistantItem, HarnessItem, Item, ToolSpec } from '../core/items.ts'

/** What stands before a block on its path. */
export type BlockContext =
  /** Nothing: the block opens the path. */
  | 'start'
  /** A harness block. */
  | 'harness'
  /** A generated turn whose last token is the end-of-turn token. */
  | 'turn-closed'
  /** A generated turn that was cut (length); the block closes it first. */
  | 'turn-open'

export type OutputEvent =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'thinking'; readonly text: string }
  /** A complete tool call whose arguments are a JSON object; `index` counts calls of the turn from 0. */
  | { readonly kind: 'tool-call'; readonly index: number; readonly name: string; readonly argumentsText: string }

/** Incremental: any chunking of the ids gives the same concatenated events. */
export interface OutputParser {
  push(tokenIds: readonly number[]): readonly OutputEvent[]
  /** Flushes what is held back. An unfinished or unparsable call comes out as text, verbatim. */
  finish(): readonly OutputEvent[]
}

export interface ChatCodec {
  readonly vocabSize: number
  /** Sampling stops after any of these. */
  readonly stopTokenIds: readonly number[]
  /**
   * Ids of new items that follow a path ending in `context`: turn glue, the items rendered as one block,
   * special tokens only where the template put them. Text from outside can never become a special token.
   * Cost is linear in the items. Consecutive tool results are one block.
   */
  encodeBlock(items: readonly HarnessItem[], context: BlockContext): Int32Array
  /** Ids that ask the policy to speak, after a harness block. */
  encodeGenerationPrompt(): Int32Array
  /** Ids of an assistant turn as a policy would have sampled it, end-of-turn included. For demonstrations and unknown history. */
  encodeTurn(turn: AssistantItem): Int32Array
  /**
   * Ids of a turn given as raw text, in which the template's markers are the markers: what a policy could have
   * sampled, also where it makes no sense. For scripts only; no end-of-turn is added.
   */
  encodeSampled(text: string): Int32Array
  /** Ids of a whole conversation by the same rules (for counting and for roots that re-use echoed turns). */
  encodeConversation(items: readonly Item[]): Int32Array
  decode(tokenIds: ArrayLike<number>): string
  outputParser(tools: readonly ToolSpec[]): OutputParser
}
