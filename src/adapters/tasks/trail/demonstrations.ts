/**
 * @file Demonstrations for the cold start: an agent that handles the tools but gives up too early.
 *
 * At every stop that names a next file the demonstrator goes on with probability `goOn`, else it writes
 * the code it has and says it is done. A policy that imitates it calls tools correctly and is often
 * wrong; what is left to learn, when to go on, is what the reward teaches.
 */
import type { AssistantItem, Item, ToolResultItem } from '../../../core/items.ts'
import { hashSeed, type Rng, seededRng } from '../../../core/rng.ts'
import { stopText, type TrailTask } from './trail.ts'
import { REMARK_WORDS } from './words.ts'

/** How the harness at hand words things; captured from one real run of it. */
export interface ToolManners {
  /** Name of the shell tool and of its one argument. */
  readonly tool: string
  readonly argument: string
  /** What the harness reports when a command printed nothing. */
  readonly emptyResult: string
}

export interface DemonstrationOptions {
  readonly seed: number
  /** Probability to go on at a stop that names a next file. */
  readonly goOn: number
  readonly manners: ToolManners
  /** Says a random word before every call, so that executions of one task differ early. Default false. */
  readonly talks?: boolean
}

/** The words the demonstrator ends with. */
export const CLOSING_TEXT = 'done'

interface Exchange {
  readonly command: string
  readonly output: string
}

/** The commands of one attempt; `goOn: 1` solves the task. */
export function trailExchanges(task: TrailTask, goOn: number, rng: Rng): readonly Exchange[] {
  const [first] = task.stops
  if (first === undefined) return []
  const exchanges: Exchange[] = [{ command: `cat ${first.file}`, output: stopText(first) }]
  for (const [i, stop] of task.stops.entries()) {
    const next = task.stops[i + 1]
    if (next === undefined || rng.next() >= goOn) {
      exchanges.push({ command: `echo ${stop.code} >> answer.txt`, output: '' })
      break
    }
    exchanges.push({ command: `echo ${stop.code} >> answer.txt; cat ${next.file}`, output: stopText(next) })
  }
  return exchanges
}

/** The turns after the instruction: calls, results, and the closing text. */
export function trailDemonstration(task: TrailTask, options: DemonstrationOptions): readonly Item[] {
  const rng = seededRng(hashSeed('demonstration', options.seed, task.name))
  const turns = trailExchanges(task, options.goOn, rng).flatMap((exchange, i) => [
    callOf(exchange.command, i, options.manners, options.talks === true ? remark(rng) : ''),
    resultOf(exchange.output, i, options.manners),
  ])
  return [...turns, { kind: 'assistant', thinking: '', text: CLOSING_TEXT, toolCalls: [] }]
}

function remark(rng: Rng): string {
  return REMARK_WORDS[rng.below(REMARK_WORDS.length)] ?? ''
}

function callOf(command: string, index: number, manners: ToolManners, text: string): AssistantItem {
  const argumentsText = `{"${manners.argument}": ${JSON.stringify(command)}}`
  return {
    kind: 'assistant',
    thinking: '',
    text,
    toolCalls: [{ id: `call_${index}_0`, name: manners.tool, argumentsText }],
  }
}

function resultOf(output: string, index: number, manners: ToolManners): ToolResultItem {
  return {
    kind: 'tool-result',
    callId: `call_${index}_0`,
    name: manners.tool,
    text: output === '' ? manners.emptyResult : output,
    isError: false,
  }
}
