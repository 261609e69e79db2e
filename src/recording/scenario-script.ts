/**
 * @file Speaks a scenario: the next ids of the policy as a function of the context.
 *
 * Only one thing is remembered: which generation asked about which context, so that a harness that asks the very same
 * thing again can be given another answer, while every leg of one generation continues the same turn.
 */
import type { ExecutionId } from '../core/ids.ts'
import type { AssistantItem, ToolCall } from '../core/items.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import type { HarnessProfile, ShellTool } from '../trajectory/profile.ts'
import { splitContext } from './context-parts.ts'
import type { ContextParts } from './context-parts.ts'
import type { Scenario, ScenarioRule, ScenarioTurn } from './scenario.ts'

/** The ids still to come after `promptIds`, which may end in a part of the turn. */
export type ScenarioScript = (promptIds: Int32Array, executionId: ExecutionId, requestId: string) => Int32Array

export interface ScenarioScriptOptions {
  /** Told of a context that no rule holds for: the last thing the harness said. */
  readonly onMiss?: (lastText: string) => void
}

export function scenarioScript(
  scenario: Scenario,
  codec: ChatCodec,
  { shellTool }: Pick<HarnessProfile, 'shellTool'>,
  options: ScenarioScriptOptions = {},
): ScenarioScript {
  const asked = new Map<string, string[]>()
  return (promptIds, executionId, requestId) => {
    const parts = splitContext(promptIds, codec)
    const key = `${executionId} ${fingerprint(promptIds.subarray(0, parts.turnStart))}`
    const generations = asked.get(key) ?? []
    asked.set(key, generations)
    if (!generations.includes(requestId)) generations.push(requestId)
    const turn = turnFor(scenario, textsOf(parts, codec), generations.indexOf(requestId), options.onMiss)
    return spoken(turn, codec, shellTool).subarray(parts.partial.length)
  }
}

/** What the harness wrote, in pieces: before the first turn, then after each. */
function textsOf(parts: ContextParts, codec: ChatCodec): readonly string[] {
  return [codec.decode(parts.head), ...parts.exchanges.map(({ block }) => codec.decode(block))]
}

function turnFor(
  scenario: Scenario,
  texts: readonly string[],
  timesAsked: number,
  onMiss: ((lastText: string) => void) | undefined,
): ScenarioTurn {
  const rule = scenario.rules.find((candidate) => holds(candidate, texts))
  if (rule === undefined) {
    onMiss?.(texts.at(-1) ?? '')
    return scenario.otherwise
  }
  const chosen = rule.turns[turnsSince(rule.since, texts)] ?? scenario.otherwise
  return Array.isArray(chosen) ? (chosen[Math.min(timesAsked, chosen.length - 1)] ?? scenario.otherwise) : chosen
}

function holds({ when }: ScenarioRule, texts: readonly string[]): boolean {
  const all = texts.join('\n')
  const first = texts[0] ?? ''
  const last = texts.at(-1) ?? ''
  return (
    includes(all, when.includes) &&
    lacks(all, when.lacks) &&
    includes(first, when.firstIncludes) &&
    lacks(first, when.firstLacks) &&
    includes(last, when.lastIncludes) &&
    lacks(last, when.lastLacks)
  )
}

function includes(text: string, wanted: readonly string[] = []): boolean {
  return wanted.every((part) => text.includes(part))
}

function lacks(text: string, unwanted: readonly string[] = []): boolean {
  return !unwanted.some((part) => text.includes(part))
}

/** Turns of the policy after the last text that holds the marker. */
function turnsSince(marker: string | undefined, texts: readonly string[]): number {
  const at = marker === undefined ? 0 : texts.findLastIndex((text) => text.includes(marker))
  return texts.length - 1 - Math.max(0, at)
}

function spoken(turn: ScenarioTurn, codec: ChatCodec, shell: ShellTool): Int32Array {
  const fill = (text: string): string =>
    text.replaceAll('${shell}', shell.name).replaceAll('${command}', shell.argument)
  if (turn.raw !== undefined) {
    const ids = codec.encodeSampled(fill(turn.raw))
    return Int32Array.from([...ids, ...codec.stopTokenIds.slice(0, 1)])
  }
  const commands = turn.shell === undefined ? [] : [turn.shell].flat()
  const item: AssistantItem = {
    kind: 'assistant',
    thinking: turn.thinking ?? '',
    text: turn.text ?? '',
    toolCalls: [
      ...(turn.calls ?? []).map(({ tool, args }) =>
        callOf(fill(tool), fill(typeof args === 'string' ? args : JSON.stringify(args))),
      ),
      ...commands.map((command) => callOf(shell.name, JSON.stringify({ [shell.argument]: command, ...shell.extra }))),
    ],
  }
  return codec.encodeTurn(item)
}

/** The gateway gives calls their ids. */
function callOf(name: string, argumentsText: string): ToolCall {
  return { id: '', name, argumentsText }
}

/** Two 32-bit lanes of FNV-1a over the ids, with the length. */
function fingerprint(ids: Int32Array): string {
  let a = 0x811c9dc5
  let b = 0x1b873593
  for (const id of ids) {
    a = Math.imul(a ^ id, 0x01000193)
    b = Math.imul(b ^ id, 0x85ebca6b)
    b ^= b >>> 15
  }
  return `${ids.length} ${a >>> 0} ${b >>> 0}`
}
